"""TiSASRec as a user trains it: it learns from times what SASRec cannot know, takes the public implementation's weights, and
refuses what it cannot train on."""
import os
import random
import re
import signal

import pytest
import torch

from jobs import WorkloadJob, fresh_starts
from runs import SMALL_MODEL, equal_weights, evaluations, losses, records, weights
from sasrec_twin import take_a_few_steps
from tisasrec_twin import TiSASRec

ITEMS = 40
SHORT, LONG = 60, 86400
SHAPE_AND_RATE = ["--maxlen", "20", "--hidden_units", "32", "--num_blocks", "1", "--lr", "0.003"]


@pytest.fixture(scope="module")
def timed_dataset(tmp_path_factory):
    """After a short gap comes the next item of a circle, after a long one the item opposite: who sees the items alone can
    only guess which of the two."""
    draw = random.Random(3)
    lines = []
    for user in range(1, 301):
        item, when = draw.randrange(ITEMS), 1_000_000 * user
        gap = SHORT
        for _ in range(25):
            lines.append(f"{user}\t{item + 1}\t1\t{when}\n")
            item = (item + (1 if gap == SHORT else ITEMS // 2)) % ITEMS
            gap = draw.choice((SHORT, LONG))
            when += gap
    path = tmp_path_factory.mktemp("data") / "timed.txt"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def command(lockstep, dataset, folder, *flags):
    return [lockstep, "run", "sasrec", "--dataset", dataset, "--train_dir", folder, "--status_port", "0",
            "--eval_every", "0", *SHAPE_AND_RATE, *flags]


def train(run, lockstep, dataset, folder, *flags):
    done = run(command(lockstep, dataset, folder, *flags))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_times_that_decide_what_comes_next_are_learned(run, lockstep, timed_dataset, tmp_path):
    ndcg = {}
    for variant in ("sasrec", "tisasrec"):
        train(run, lockstep, timed_dataset, tmp_path / variant, "--variant", variant, "--num_epochs", "60",
              "--batch_size", "32")
        ndcg[variant] = records(tmp_path / variant)[-1]["test_ndcg@10"]
    assert ndcg["tisasrec"] > ndcg["sasrec"] + 0.2, ndcg


def test_weights_of_the_public_implementation_are_taken_over(run, lockstep, timed_dataset, tmp_path):
    twin = TiSASRec(ITEMS, maxlen=20, hidden_units=32, num_blocks=1, time_span=16)
    take_a_few_steps(twin, ITEMS, maxlen=20)
    torch.save(twin.state_dict(), tmp_path / "TiSASRec.epoch=20.pth")
    train(run, lockstep, timed_dataset, tmp_path / "run", "--variant", "tisasrec", "--time_span", "16", "--lr", "0",
          "--num_epochs", "21", "--state_dict_path", tmp_path / "TiSASRec.epoch=20.pth")
    assert equal_weights(weights(tmp_path / "run"), twin.state_dict())


def test_rows_of_a_time_table_that_cannot_be_reached_are_left_out_and_counted(run, lockstep, timed_dataset, tmp_path):
    """As in the published file, whose table of the keys has 3,417 rows and that of the values 257."""
    twin = TiSASRec(ITEMS, maxlen=20, hidden_units=32, num_blocks=1, time_span=16)
    state = dict(twin.state_dict())
    state["time_matrix_K_emb.weight"] = torch.cat([state["time_matrix_K_emb.weight"], torch.rand(100, 32)])
    path = tmp_path / "TiSASRec.epoch=20.pth"
    torch.save(state, path)
    output = train(run, lockstep, timed_dataset, tmp_path / "run", "--variant", "tisasrec", "--time_span", "16", "--lr", "0",
                   "--num_epochs", "21", "--state_dict_path", path)
    assert "time_matrix_K_emb.weight: the first 17 of 117 rows" in " ".join(output.split())
    assert equal_weights(weights(tmp_path / "run"), twin.state_dict())
    done = run([lockstep, "sasrec", "recommend", "--checkpoint", path, "--dataset", timed_dataset, "--variant", "tisasrec",
                "--time_span", "16", "--maxlen", "20", "--hidden_units", "32", "--num_blocks", "1", "--num_heads", "1",
                "--topk", "3"])
    assert done.returncode == 0 and "the first 17 of 117 rows; the others cannot be reached" in done.stderr, done.stderr


MHC = ["--no_mhc=false"]
# What a flag is added to, and the flag.
FLAGS = [([], ["--time_dropout", "pairwise"]), ([], ["--no_time"]), ([], ["--time_span", "16"]),
         ([], ["--time_unit", "hour"]), ([], MHC), (MHC, ["--mhc_expansion_rate", "2"]), (MHC, ["--mhc_init_gate", "0.5"]),
         (MHC, ["--mhc_sinkhorn_iter", "0"]), ([*MHC, "--precision", "bf16"], ["--mhc_no_amp"])]


@pytest.mark.parametrize("others, flags", FLAGS, ids=lambda words: " ".join(words) or "-")
def test_every_form_trains_and_each_flag_changes_what_is_learned(run, lockstep, timed_dataset, tmp_path, others, flags):
    for folder, more in (("plain", []), ("form", flags)):
        train(run, lockstep, timed_dataset, tmp_path / folder, "--variant", "tisasrec", "--max_steps", "5", "--log_every",
              "1", *others, *more)
    plain, form = losses(tmp_path / "plain"), losses(tmp_path / "form")
    assert len(form) == 5 and all(loss < 10 for loss in form.values())
    assert plain != form


def test_no_flag_of_tisasrec_is_left_out_above(run, lockstep):
    text = run([lockstep, "run", "sasrec", "--help"]).stdout
    group = re.search(r"^TiSASRec.*?:\n(.*?)\n\n", text, re.M | re.S).group(1)
    tested = {word.removeprefix("--").partition("=")[0] for _, flags in FLAGS for word in flags if word.startswith("--")}
    assert set(re.findall(r"^  --(\w+)", group, re.M)) == tested


def test_a_file_without_times_is_refused_with_the_ways_out(run, lockstep, small_dataset, tmp_path):
    done = run([lockstep, "run", "sasrec", "--variant", "tisasrec", "--dataset", small_dataset, "--train_dir",
                tmp_path / "run", *SMALL_MODEL])
    assert done.returncode == 3
    for part in (str(small_dataset), "has no timestamps", "--no_time", "--variant sasrec"):
        assert part in done.stdout + done.stderr


def test_a_checkpoint_of_the_other_variant_is_refused_by_name(run, lockstep, timed_dataset, tmp_path):
    train(run, lockstep, timed_dataset, tmp_path / "run", "--max_steps", "2")
    done = run([lockstep, "run", "sasrec", "--variant", "tisasrec", "--dataset", timed_dataset, "--train_dir",
                tmp_path / "run", "--status_port", "0", *SHAPE_AND_RATE, "--max_steps", "4"])
    assert done.returncode == 2
    assert "--variant is tisasrec in this command and sasrec in the checkpoint" in done.stdout + done.stderr


@pytest.mark.long
def test_a_rank_killed_in_an_evaluation_and_a_killed_agent_cost_neither_a_step_nor_an_evaluation(run, lockstep, timed_dataset,
                                                                                                 tmp_path):
    flags = ["--variant", "tisasrec", "--batch_size", "12", "--log_every", "1", "--eval_every", "1", "--threads", "1",
             "--rejoin_timeout_seconds", "20", "--max_steps", "400"]
    train(run, lockstep, timed_dataset, tmp_path / "reference", *flags, "--nproc", "4")
    job = WorkloadJob(lockstep, "sasrec", tmp_path / "run", tmp_path, "--dataset", timed_dataset, *SHAPE_AND_RATE, *flags,
                      faulty=True)
    job.wait_for_progress(30)
    job.inject(1, "slow_evaluation", 3600.0)
    job.wait_for_status(lambda status: status["workers"] and all(
        worker["activity"] == "evaluating" for worker in status["workers"]), "an evaluation")
    job.kill_rank(3)
    job.wait_for_recovery(1)
    os.kill(job.agents()[1], signal.SIGKILL)
    job.wait_for_recovery(2)
    assert job.end() == 0, job.output()
    assert fresh_starts(job.output()) == 1, job.output()
    assert losses(job.folder) == losses(tmp_path / "reference")
    assert evaluations(job.folder) == evaluations(tmp_path / "reference")
    assert equal_weights(weights(job.folder), weights(tmp_path / "reference"))
