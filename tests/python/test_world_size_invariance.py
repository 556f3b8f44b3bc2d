"""The maths never depends on the machines: the same losses and figures for 1, 2, 3 and 4 ranks, dropout on."""
import re

import pytest

from jobs import free_port
from runs import SMALL_MODEL, checkpoints, losses

STEPS = 50
WORLD_SIZES = (1, 2, 3, 4)


def train(run, lockstep, dataset, folder, nproc, *flags):
    done = run([lockstep, "run", "sasrec", "--dataset", dataset, "--train_dir", folder, "--nproc", nproc,
                "--dropout_rate", "0.3", "--max_steps", STEPS, "--log_every", "1", "--eval_every", "0",
                "--drift_check_every", "10", *SMALL_MODEL, *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(folder)


# What each variant adds to the plain run; all of them must be invariant.
VARIANTS = {
    "plain": [],
    "accumulation": ["--grad_accum_steps", "2"],
    "clipped, pre-norm, l2": ["--clip_grad_norm", "0.5", "--norm_first", "--l2_emb", "0.01"],
    "scheduled, ema, original": ["--lr_schedule", "cosine", "--warmup_steps", "5", "--ema_decay", "0.9", "--original"],
}


@pytest.mark.parametrize("flags", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_steps_loss_is_the_same_for_every_world_size(run, lockstep, small_dataset, tmp_path, flags):
    curves = {n: train(run, lockstep, small_dataset, tmp_path / f"w{n}", n, *flags) for n in WORLD_SIZES}
    assert sorted(curves[1]) == list(range(1, STEPS + 1))
    for n in WORLD_SIZES[1:]:
        for step, loss in curves[1].items():
            assert curves[n][step] == pytest.approx(loss, rel=1e-5), f"step {step} with {n} ranks"
    assert len(set(curves[1].values())) > STEPS // 2, "the losses do not move: the comparison says nothing"


def test_the_evaluation_of_a_checkpoint_is_the_same_to_the_last_digit(run, lockstep, small_dataset, tmp_path):
    train(run, lockstep, small_dataset, tmp_path / "run", 2)
    checkpoint = tmp_path / "run" / checkpoints(tmp_path / "run")[-1]
    printed = set()
    for n in WORLD_SIZES:
        done = run([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", tmp_path / "run", "--nproc", n,
                    "--dropout_rate", "0.3", "--inference_only=true", "--resume", checkpoint, *SMALL_MODEL])
        assert done.returncode == 0, done.stdout + done.stderr
        printed.add(tuple(re.findall(r"(?:NDCG|HR)@10: [0-9.]+", done.stdout)))
    assert len(printed) == 1 and len(printed.pop()) >= 4, printed


def test_a_total_batch_is_spread_unevenly_without_bias(run, lockstep, small_dataset, tmp_path):
    # 7 samples over 3 ranks: 3, 2, 2; and a last batch of the epoch that leaves a rank with nothing.
    flags = ["--batch_size", "7"]
    one = train(run, lockstep, small_dataset, tmp_path / "one", 1, *flags)
    three = train(run, lockstep, small_dataset, tmp_path / "three", 3, *flags)
    for step, loss in one.items():
        assert three[step] == pytest.approx(loss, rel=1e-5), f"step {step}"


def test_a_start_with_fewer_nodes_than_wanted_has_the_batch_and_the_rate_of_all(run, lockstep, small_dataset, tmp_path):
    flags = ["--batch_size", "6", "--batch_scope", "per_device", "--lr_scaling", "linear"]
    both = train(run, lockstep, small_dataset, tmp_path / "both", 2, *flags)
    done = run([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", tmp_path / "one", "--nproc", "1",
                "--nnodes", "1:2", "--node_rank", "0", "--coordinator", f"127.0.0.1:{free_port()}",
                "--rejoin_timeout_seconds", "1", "--dropout_rate", "0.3", "--max_steps", STEPS, "--log_every", "1",
                "--eval_every", "0", *SMALL_MODEL, *flags])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 in all = 1 rank x 2 micro-batches of at most 6" in done.stdout
    assert "scaled linear for 2 ranks" in done.stdout
    alone = losses(tmp_path / "one")
    for step, loss in both.items():
        assert alone[step] == pytest.approx(loss, rel=1e-5), f"step {step}"
