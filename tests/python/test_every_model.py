"""What must hold for each of our models: neither the number of ranks, nor a stop, nor a rank that dies changes what is trained.
Each model is small; its batches are uneven and its dropout is on. A new model gets a row here. (Plain SASRec and
gpt2rec: test_world_size_invariance.py, test_recovery.py, test_gpt2rec.py.)"""
import random

import pytest
import torch
from safetensors.torch import load_file

from programs import text
from runs import Running, checkpoints, equal_weights, evaluations, losses, records, weights

STRUCTURES = ["--hidden_dim", "32", "--eval_every", "5", "--status_port", "0"]
MPNN = ["protein", "--pdb_path", "generated:30:70", "--num_encoder_layers", "1", "--num_decoder_layers", "1", "--num_neighbors",
        "12", "--warmup_steps", "20", "--lr", "0.003", "--batch_tokens", "500", *STRUCTURES]
TISASREC = ["sasrec", "--dataset", "DATA", "--variant", "tisasrec", "--maxlen", "20", "--hidden_units", "32", "--num_blocks", "1",
            "--lr", "0.003", "--batch_size", "12", "--eval_every", "0", "--time_dropout"]
PICTURES = ["jit", "--img_size", "16", "--batch_scope", "total", "--lr", "0.002"]
MODELS = {
    "tisasrec": [*TISASREC, "table"],
    "tisasrec, pairwise": [*TISASREC, "pairwise"],
    "mpnn": MPNN,
    "mpnn by tokens": [*MPNN, "--loss_norm", "tokens", "--ema_decay", "0.9"],
    "mdm": ["protein", "--variant", "mdm", "--pdb_path", "generated:30:40", "--num_heads", "4", "--batch_scope", "total",
            "--batch_size", "5", "--val_split", "0.3", "--lr", "0.001", *STRUCTURES],
    "jit": [*PICTURES, "--data_path", "generated:60:3", "--model", "3x64/4", "--batch_size", "12", "--warmup_epochs", "1",
            "--dropout", "0.1", "--ema_decay", "0.9,0.99", "--sample_images", "4", "--sample_steps", "4"],
    "jit of tokens": [*PICTURES, "--data_path", "DATA", "--model", "2x64/4", "--batch_size", "6", "--warmup_epochs", "0"]}
KILLS, STEPS = 4, 200  # the kills at steps 20, 40, …: far enough from the end that it does not come before the last
EACH = [pytest.param(name, marks=[pytest.mark.long] if name == "mpnn by tokens" else []) for name in MODELS]


@pytest.fixture
def train(run, lockstep, tmp_path):
    """Trains a model up to a step, in a folder of tmp_path; with wait=False returns the program that does it."""
    draw = random.Random(3)
    events, texts = tmp_path / "events.txt", tmp_path / "texts.txt"
    events.write_text("".join(f"{user}\t{draw.randint(1, 40)}\t1\t{1_000_000 * user + 60 * at * draw.randint(1, 3)}\n"
                              for user in range(1, 301) for at in range(25)))
    texts.write_text("".join(" ".join(draw.choice(("the", "water", "Paris", "naïve", "—")) for _ in range(draw.randint(30, 60))) + "\n"
                             for _ in range(27)), encoding="utf-8")

    def call(model, folder, steps, ranks, *flags, wait=True):
        data = events if "sasrec" in MODELS[model] else texts
        argv = [lockstep, "run", *(data if word == "DATA" else word for word in MODELS[model]), "--train_dir", tmp_path / folder,
                "--nproc", ranks, "--max_steps", steps, "--log_every", "1", "--threads", "1", *flags]
        if "--status_port" not in argv:
            argv += ["--status_port", "0"]
        if not wait:
            return Running(argv, tmp_path)
        done = run(argv)
        assert done.returncode == 0, text(done)
        return text(done)
    return call


def averages(folder):
    """file → name → tensor, of the newest checkpoint."""
    return {file.name: load_file(file) for file in (folder / checkpoints(folder)[-1]).glob("ema*.safetensors")}


def assert_near(found, expected, rel):
    """Of the evaluations; weights that differ by rounding may swap two scores, each of one user of 300, or change the likeliest amino
    acid. A perplexity is the exponential of a loss, so it differs by more."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            limit = ({"abs": 0.007} if "ndcg" in name or "hr@" in name else {"abs": 0.005} if "recovery" in name
                     else {"rel": max(rel, 1e-4) if "perplexity" in name else rel})
            assert one[name] == pytest.approx(value, **limit), name


@pytest.mark.parametrize("model", EACH)
def test_every_steps_loss_and_the_evaluations_are_the_same_for_every_world_size(train, tmp_path, model):
    steps = 50
    for ranks in (1, 2, 4):
        train(model, f"w{ranks}", steps, ranks, "--drift_check_every", "5")
    alone = tmp_path / "w1"
    assert sorted(losses(alone)) == list(range(1, steps + 1)) and len(set(losses(alone).values())) == steps
    for folder in (tmp_path / "w2", tmp_path / "w4"):
        assert losses(folder) == pytest.approx(losses(alone), rel=1e-5 if model != "mdm" else 1e-4), folder
        assert records(folder)[0]["grad_norm"] == pytest.approx(records(alone)[0]["grad_norm"], rel=1e-4)
        assert_near(evaluations(folder), evaluations(alone), 1e-5 if model.startswith("mpnn") else 1e-4)


@pytest.mark.parametrize("model", [*EACH[:1], *(pytest.param(name, marks=pytest.mark.long) for name in list(MODELS)[1:])])
def test_a_resume_and_killed_workers_cost_no_step(train, tmp_path, model):
    train(model, "undisturbed", STEPS, 2)
    train(model, "run", 10, 2)
    running = train(model, "run", STEPS, 2, wait=False)
    for kill in range(KILLS):
        running.wait_for_step(tmp_path / "run", 20 + 20 * kill)
        recoveries = running.output().count("going on at step")
        running.kill_worker(kill % 2)
        running.wait_for(lambda before=recoveries: running.output().count("going on at step") > before, "going on")
    assert running.end() == 0, running.output()
    assert "going on at step" in running.output(), running.output()
    found, expected = tmp_path / "run", tmp_path / "undisturbed"
    assert losses(found) == losses(expected)
    assert equal_weights(weights(found), weights(expected))
    assert averages(found).keys() == averages(expected).keys()
    assert all(equal_weights(average, averages(expected)[name]) for name, average in averages(found).items())
    for average in averages(found).values():
        assert any((tensor - weights(found)[name]).abs().max() > 1e-3 for name, tensor in average.items()), "of one step alone"


@pytest.mark.parametrize("first, then", [(2, 1), pytest.param(1, 4, marks=pytest.mark.long)])
@pytest.mark.parametrize("model", EACH)
def test_a_resume_with_another_number_of_ranks_changes_nothing_but_rounding(train, tmp_path, model, first, then):
    train(model, "undisturbed", 20, first)
    train(model, "run", 11, first)
    assert "resumed from" in train(model, "run", 20, then)
    found, expected = tmp_path / "run", tmp_path / "undisturbed"
    assert sorted(losses(found)) == list(range(1, 21))
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5 if "tisasrec" in model else 1e-4)
    for name, average in averages(found).items():
        for tensor, values in average.items():
            torch.testing.assert_close(values, averages(expected)[name][tensor], rtol=1e-3, atol=1e-5, msg=lambda m, t=tensor: f"{t}: {m}")
