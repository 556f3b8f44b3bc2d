"""`lockstep workloads`, `lockstep demo` and `lockstep bench scaling` as a new user runs them, shortened by flags."""
import json
import re
import shlex
import shutil
import sys

import pytest
from PIL import Image

from programs import fetched, text
from runs import checkpoints, records

SHORT = ["--hidden_units", "16", "--maxlen", "12", "--status_port", "0"]


@pytest.fixture
def ask(run, lockstep, tmp_path):
    """ask(words…) runs `lockstep words…` in an empty folder, where there is a home without data."""
    def call(*words, **environment):
        return run([lockstep, *words], cwd=tmp_path, HOME=str(tmp_path / "home"), TMPDIR=str(tmp_path), **environment)
    return call


def test_workloads_says_what_there_is_in_80_columns(ask):
    done = ask("workloads")
    assert done.returncode == 0, text(done)
    assert done.stdout.startswith("sasrec - ") and "--variant sasrec (default), tisasrec" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_demo_on_movielens_ends_with_its_own_figures_and_commands_that_work(ask, ml100k, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ml-100k.inter").symlink_to(ml100k)
    done = ask("demo", "--num_epochs", "4", "--eval_every", "2", *SHORT)
    assert done.returncode == 0, text(done)
    assert "Training on MovieLens-100K (data/ml-100k.inter)" in done.stdout
    assert re.search(r"ranks +2 \(1 node", done.stdout)
    first, last = [line for line in records(tmp_path / "demo/sasrec") if "evaluation" in line]
    result = done.stdout[done.stdout.index("Result on MovieLens-100K"):]
    assert re.search(r"^ +epoch 2 +epoch 4$", result, re.M)
    figures = [name for name in last if name not in ("step", "epoch", "evaluation", "time")]
    assert len(figures) >= 4
    for name in figures:
        assert re.search(rf"^  {re.escape(name)} +{first[name]:.4f} +{last[name]:.4f}$", result, re.M), result
    commands = re.findall(r"^    (\S*/lockstep (?:run|ckpt) .*)$", result, re.M)
    assert len(commands) == 4, result
    for command in commands:
        again = ask(*command.split()[1:])
        assert again.returncode == 0, f"$ {command}\n{text(again)}"
    assert (tmp_path / "demo/sasrec.pt").stat().st_size > 0
    assert max(line["epoch"] for line in records(tmp_path / "demo/sasrec") if "evaluation" in line) == 8


def test_the_demo_without_data_says_so_and_trains_on_generated_ones_in_a_fresh_folder(ask, tmp_path):
    for folder in ("demo/sasrec", "demo/sasrec-2"):
        done = ask("demo", "sasrec", "--max_steps", "6", *SHORT)
        assert done.returncode == 0, text(done)
        assert "MovieLens-100K is not on this machine: no ml-100k.inter in data" in done.stdout
        assert "This trains on a generated data set instead." in done.stdout and "pip download" in done.stdout
        assert "Result on a generated data set" in done.stdout
        assert checkpoints(tmp_path / folder) == ["step-00000006"]


# What makes the other workloads' demos quick.
SHORT_DEMOS = {
    "jit": ["--model", "2x64/8", "--img_size", "16", "--sample_steps", "2"],
    "gpt2rec": ["--gpt2_config", "1x64"],
    "protein": ["--hidden_dim", "32", "--num_neighbors", "8"],
}


def commands_of(done):
    """Of Lockstep, below "Next"."""
    following = done.stdout[done.stdout.index("\nNext\n"):]
    return [shlex.split(words) for words in re.findall(r"^    \S*/lockstep (.*)$", following, re.M)]


def samples(folder):
    """The size of the picture that the demo draws, in pixels."""
    with Image.open(folder / "samples.png") as picture:
        assert picture.format == "PNG"
        return picture.size


@pytest.mark.parametrize("workload", SHORT_DEMOS)
def test_each_demo_ends_with_its_result_and_commands_that_work(ask, tmp_path, workload):
    flags = [*SHORT_DEMOS[workload], "--status_port", "0"]
    done = ask("demo", workload, "--max_steps", "2", *flags)
    assert done.returncode == 0, text(done)
    assert "This trains on a generated data set instead." in done.stdout
    assert re.search(r"^Result on a generated data set\n.*\n.*\n  loss +\d", done.stdout, re.M), done.stdout
    assert checkpoints(tmp_path / "demo" / workload) == ["step-00000002"]
    if workload == "jit":
        assert samples(tmp_path / "demo/jit") == (8 * 17 - 1, 8 * 17 - 1)  # 64 images of 16 x 16, a line between them
    commands = commands_of(done)
    assert {words[0] for words in commands} >= {"run", "ckpt", workload, "bench"}, commands
    shorter = {"demo": ["--max_steps", "1", *flags], "bench": ["--ranks", "1", "--steps", "2", "--warmup", "1", *flags]}
    for words in commands:
        again = ask(*words, *shorter.get(words[0], []))
        assert again.returncode == 0, f"$ lockstep {shlex.join(words)}\n{text(again)}"
        if words[0] == "bench":
            assert re.search(r"^ +1\*? +[\d.]+ +1\.00x +100 %$", again.stdout, re.M), again.stdout
    assert (tmp_path / "demo" / f"{workload}.pt").stat().st_size > 0


def test_the_demo_of_a_model_that_its_closing_task_refuses_ends_well(ask, tmp_path):
    done = ask("demo", "protein", "--variant", "mdm", "--hidden_dim", "32", "--max_steps", "2", "--save_dir", "mine", "--status_port", "0")
    assert done.returncode == 0, text(done)
    assert "give one of --variant mpnn" in done.stderr
    assert checkpoints(tmp_path / "mine") == ["step-00000002"]
    commands = commands_of(done)
    assert {words[0] for words in commands} == {"run", "ckpt", "bench"}, commands  # no task


@pytest.mark.long
def test_the_demo_of_images_learns_the_smileys_and_draws_some(ask, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/emoji").symlink_to(fetched("get_emoji"))
    done = ask("demo", "jit", "--status_port", "0", timeout=1800)
    assert done.returncode == 0, text(done)
    assert "Training on 169 smileys of 64 x 64 pixels (data/emoji/smileys-and-emotion)" in done.stdout
    assert samples(tmp_path / "demo/jit") == (8 * 33 - 1, 8 * 33 - 1)
    loss = [line["loss"] for line in records(tmp_path / "demo/jit") if "loss" in line]
    assert loss[-1] < 0.5 * loss[0], (loss[0], loss[-1])
    assert len(list((tmp_path / "demo/jit/outputs").glob("step-*/samples.png"))) == 3


@pytest.mark.long
def test_the_demo_of_proteins_designs_better_than_the_most_frequent_amino_acid(ask, structures, tmp_path):
    shutil.copytree(structures, tmp_path / "data/structures", ignore=shutil.ignore_patterns(".lockstep"))
    done = ask("demo", "protein", "--status_port", "0", timeout=400)
    assert done.returncode == 0, text(done)
    assert "Training on real structures (data/structures)" in done.stdout
    again = ask(*next(words for words in commands_of(done) if words[:2] == ["protein", "design"]), timeout=600)
    assert again.returncode == 0, text(again)
    for one in (done, again):
        said = re.search(r"recovery over all designed residues ([\d.]+); always [A-Y], .*: ([\d.]+)", text(one))
        assert said and float(said[1]) > float(said[2]), text(one)
    held_out = (tmp_path / "demo/protein/held_out.txt").read_text().split()
    designs = (tmp_path / "demo/protein/designs.fa").read_text()
    assert sorted(re.findall(r"^>(\S+), score=.*designed_chains", designs, re.M)) == sorted(held_out) != []


@pytest.mark.long
def test_the_demo_of_gpt2rec_on_movielens_ends_with_recommendations(ask, ml100k, tmp_path):
    (tmp_path / "data").mkdir()
    for file in ml100k.parent.glob("ml-100k.*"):
        shutil.copy(file, tmp_path / "data")
    done = ask("demo", "gpt2rec", "--status_port", "0", timeout=1800)
    assert done.returncode == 0, text(done)
    assert "Training on MovieLens-100K (data/ml-100k.item)" in done.stdout
    assert re.search(r"^ +epoch 4 +epoch 20$", done.stdout, re.M), text(done)
    again = ask(*next(words for words in commands_of(done) if words[:2] == ["gpt2rec", "recommend"]), timeout=600)
    assert again.returncode == 0 and again.stdout, text(again)


def test_the_demo_takes_the_user_s_own_data_and_ends_with_the_code_of_a_run_that_fails(ask, small_dataset):
    done = ask("demo", "--dataset", small_dataset, "--max_steps", "3", *SHORT)
    assert done.returncode == 0, text(done)
    assert f"Training on {small_dataset}" in done.stdout
    done = ask("demo", "--dataset", "missing.inter", *SHORT)
    assert done.returncode == 3, text(done)
    assert "missing.inter" in done.stderr and "Result" not in done.stdout


def test_an_unknown_workload_is_refused_with_what_there_is(ask):
    for words in (["demo", "gpt5"], ["bench", "scaling", "gpt5"]):
        done = ask(*words)
        assert done.returncode == 2 and done.stdout == "", text(done)
        assert 'unknown workload "gpt5", expected sasrec' in done.stderr
        assert "lockstep workloads" in done.stderr


def test_the_bench_measures_one_and_two_ranks(ask, small_dataset, tmp_path):
    done = ask("bench", "scaling", "sasrec", "--dataset", small_dataset, "--ranks", "2,1", "--steps", "20", "--warmup",
               "5", "--num_epochs", "1", *SHORT)
    assert done.returncode == 0, text(done)
    assert "without effect here: --num_epochs, --status_port" in done.stderr
    assert re.search(r"device +CPU.*\d+ cores?\n +\d+ threads? for each rank\n", done.stdout), done.stdout
    assert f"data    {small_dataset}\n" in done.stdout and "128 in all (strong scaling)" in done.stdout
    assert "20 in each run, after 5 that do not count" in done.stdout
    rows = re.findall(r"^ +(\d+)\*? +([\d.]+) +([\d.]+)x +(\d+) %$", done.stdout, re.M)
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][2:] == ("1.00", "100")
    assert float(rows[1][2]) == pytest.approx(float(rows[1][1]) / float(rows[0][1]), abs=0.02)
    assert not list(tmp_path.glob("lockstep-bench-*")), "the runs' files are removed"


def test_the_bench_ends_where_its_parent_ignores_the_ends_of_children(run, lockstep, small_dataset, tmp_path):
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    done = run([sys.executable, "-c", ignoring, lockstep, "bench", "scaling", "sasrec", "--dataset", small_dataset, "--ranks", "1",
                "--steps", "2", "--warmup", "1", *SHORT], cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, text(done)
    assert "training with 1 rank" in done.stderr


def test_the_bench_for_programs_is_one_json_object_and_knows_ranks_that_share_cores(ask, small_dataset):
    done = ask("bench", "scaling", "sasrec", "--dataset", small_dataset, "--ranks", "1,3", "--steps", "4", "--warmup",
               "2", "--batch_scope", "per_device", "--batch_size", "8", "--json", *SHORT)
    assert done.returncode == 0, text(done)
    found = json.loads(done.stdout)
    assert found["workload"] == "sasrec" and (found["device"], found["device_name"]) == ("cpu", "CPU") and found["cores"] >= 1
    assert (found["batch_scope"], found["batch_size"], found["steps"], found["warmup_steps"]) == ("per_device", 8, 4, 2)
    one, three = found["rows"]
    assert (one["ranks"], three["ranks"]) == (1, 3)
    assert three["shares_cores"] == (found["cores"] < 3)
    assert three["speedup"] == pytest.approx(three["samples_per_second"] / one["samples_per_second"])
    assert three["efficiency"] == pytest.approx(three["speedup"] / 3)


@pytest.mark.parametrize("flags, code, said", [
    (["--ranks", "one"], 2, 'found "one" in "one"'),
    (["--nproc", "2"], 2, "--nproc cannot be used with bench scaling"),
    (["--maxlen", "many"], 2, "--maxlen"),
    (["--dataset", "missing.inter"], 3, "missing.inter"),
    (["--ranks", "4", "--batch_size", "2"], 2, "--batch_size 2 is smaller than the 4 ranks"),
    (["--precision", "fp16"], 2, "--precision fp16 needs a GPU"),
])
def test_a_bench_that_fails_ends_with_the_run_s_error_and_code(ask, flags, code, said):
    done = ask("bench", "scaling", "sasrec", "--dataset", "generated", "--ranks", "1", "--steps", "4", "--warmup", "2",
               *SHORT, *flags)
    assert done.returncode == code, text(done)
    assert "lockstep bench scaling: " in done.stderr and said in done.stderr, text(done)
