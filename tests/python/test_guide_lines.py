"""The SASRec guide's own command lines, on CPUs: its script, torchrun and torch.distributed.launch with lockstep-worker in
the script's place, its flags, its presets, its weight files' names, and MovieLens-1M's three files."""
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

import pytest

from programs import ROOT, bin_folder, clean_environment, program, text
from runs import Running, checkpoints, losses, records, select_pause

SCRIPT = ROOT / "scripts/train_distributed.sh"
# The guide's flags for a larger model, word for word but for what makes a test quick.
LINE = ["--dataset=ml-1m", "--train_dir=dist", "--batch_size=48", "--lr=0.002", "--num_epochs=1", "--num_heads=4",
        "--num_blocks=3", "--hidden_units=100", "--maxlen=100", "--dropout_rate=0.2", "--multi_gpu=true", "--use_amp=true",
        "--num_workers=3", "--backend=gloo"]
QUICK = ["--max_steps", "2", "--log_every", "1", "--threads", "1", "--eval_users", "20", "--status_port", "0"]


def write_movielens(folder, users=90, items=60, seed=2):
    """The three files in their form: `::` between columns, Latin-1, times that many ratings share."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    ratings = []
    for user in range(1, users + 1):
        when = 978_300_000 + draw.randrange(10_000_000)
        for item in draw.sample(range(1, items + 1), 20):
            ratings.append(f"{user}::{item}::{draw.randint(1, 5)}::{when}\n")
            when += draw.choice((0, 0, 60, 7200))
    (folder / "ratings.dat").write_text("".join(ratings), encoding="latin-1")
    (folder / "users.dat").write_text("".join(f"{u}::F::25::{u % 20}::55117\n" for u in range(1, users + 1)), encoding="latin-1")
    (folder / "movies.dat").write_text("".join(f"{i}::Amélie {i} (2001)::Comedy|Romance\n" for i in range(1, items + 1)),
                                       encoding="latin-1")
    return folder


@pytest.fixture
def at_home(tmp_path):
    """A folder as the guide has it: the data in ./data/ml-1m."""
    write_movielens(tmp_path / "data" / "ml-1m")
    return tmp_path


def on_path(**extra):
    environment = clean_environment(**extra)
    return {**environment, "PATH": f"{bin_folder()}:{os.path.dirname(sys.executable)}:{environment['PATH']}"}


def start(argv, folder, **environment):
    program(bin_folder() / "lockstep-worker")
    return subprocess.run([str(word) for word in argv], cwd=folder, capture_output=True, text=True, check=False, timeout=300,
                          env=on_path(**environment))


# --- the script


def test_the_script_trains_the_guides_model_into_the_guides_folder(at_home):
    done = start([SCRIPT, "ml-1m", "tisasrec_dist", "--maxlen", "10", *QUICK], at_home, NUM_GPUS="2")
    assert done.returncode == 0, text(done)
    folder = at_home / "ml-1m_tisasrec_dist"
    args = dict(line.split(",", 1) for line in (folder / "args.txt").read_text().splitlines())
    wanted = {"preset": "guide", "variant": "tisasrec", "num_heads": "2", "num_epochs": "1000", "warmup_steps": "100",
              "lr_schedule": "exponential", "lr_decay_rate": "0.95", "use_amp": "true", "nproc": "2", "dataset": "ml-1m"}
    assert {name: args[name] for name in wanted} == wanted
    given, of_preset = re.search(r"  flags given +(.*?)  flags of preset +(.*?)  other flags ", text(done), re.S).groups()
    assert "--preset=guide" in given and "--maxlen=10" in given and "--lr_decay_rate" not in given, given
    assert "--lr_decay_rate=0.95" in of_preset and "--maxlen" not in of_preset, of_preset
    assert sorted(losses(folder)) == [1, 2]
    first = next(record for record in records(folder) if "loss" in record)
    assert first["lr"] == pytest.approx(0.001 / 100)  # warm-up


def test_flags_behind_the_script_win_over_the_preset(at_home):
    done = start([SCRIPT, "ml-1m", "out", "--variant=sasrec", "--num_heads", "1", "--no_use_amp", "--maxlen", "10",
                  *QUICK], at_home)
    assert done.returncode == 0, text(done)
    args = (at_home / "ml-1m_out" / "args.txt").read_text()
    assert "variant,sasrec\n" in args and "num_heads,1\n" in args and "use_amp,false\n" in args
    assert "num_epochs,1000\n" in args
    assert "without effect" not in text(done)


@pytest.mark.parametrize("argv, environment, words", [
    ([], {}, ["usage:", "DATASET TRAIN_DIR"]),
    (["ml-1m"], {}, ["usage:"]),
    (["--help", "me"], {}, ["usage:"]),
    (["ml-1m", "out"], {"NUM_GPUS": "all"}, ['NUM_GPUS: found "all"', "unset it"]),
    (["ml-1m", "out"], {"NUM_GPUS": "0"}, ['NUM_GPUS: found "0"']),
    (["ml-1m", "out"], {"LOCKSTEP_BIN": "/nowhere"}, ["/nowhere/lockstep is not there", "LOCKSTEP_BIN"]),
], ids=["nothing", "no folder", "a flag first", "a word", "none", "no programs"])
def test_the_script_says_what_it_expects(tmp_path, argv, environment, words):
    done = start([SCRIPT, *argv], tmp_path, **environment)
    assert done.returncode == 2, text(done)
    for word in words:
        assert word in text(done), f"{word!r} is not in: {text(done)}"


# --- launchers


def test_the_torchrun_line_and_ours_train_the_same(at_home, free_port):
    ours = start(["lockstep", "run", "sasrec", "--preset", "guide", *LINE, "--nproc_per_node=2", *QUICK], at_home)
    assert ours.returncode == 0, text(ours)
    line = [word.replace("=dist", "=torchrun") for word in LINE]
    done = start(["torchrun", "--no-python", "--nproc_per_node=2", f"--master_port={free_port()}", "lockstep-worker",
                  "sasrec", "--preset", "guide", *line, *QUICK], at_home)
    assert done.returncode == 0, text(done)
    assert losses(at_home / "ml-1m_torchrun") == losses(at_home / "ml-1m_dist")


def test_the_launch_line_and_the_rank_as_a_flag_train_the_same(at_home, free_port):
    """torch.distributed.launch without --use_env puts --local-rank in front, older ones --local_rank and no LOCAL_RANK."""
    done = start([sys.executable, "-m", "torch.distributed.launch", "--use_env", "--no_python", "--nproc_per_node=2",
                  f"--master_port={free_port()}", "lockstep-worker", "sasrec", "--preset", "guide", *LINE, *QUICK], at_home)
    assert done.returncode == 0, text(done)
    port = str(free_port())
    line = [word.replace("=dist", "=older") for word in LINE]
    older = [subprocess.Popen([bin_folder() / "lockstep-worker", flag, "sasrec", "--preset", "guide", *line, *QUICK],
                              cwd=at_home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=on_path(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
             for rank, flag in enumerate(("--local_rank=0", "--local-rank=1"))]
    outputs = [process.communicate(timeout=180)[0] for process in older]
    assert [process.returncode for process in older] == [0, 0], "".join(outputs)
    assert losses(at_home / "ml-1m_older") == losses(at_home / "ml-1m_dist")


@pytest.mark.parametrize("flags", [["--use_amp", "true"], ["--use_amp=True"], ["--use_amp", "False"], ["--use-amp"],
                                   ["--multi_gpu"], ["--multi-gpu", "false"], ["--inference_only=false"],
                                   ["--master_port", "29501"], ["--state_dict_path", "none.pth", "--state_dict_path="]],
                         ids=" ".join)
def test_each_spelling_of_the_guide_is_taken(at_home, flags):
    """What is wrong with the line is found before anything starts: a data set that is not there comes after all flags."""
    done = start(["lockstep", "run", "sasrec", "--preset", "guide", *LINE, *flags, "--dataset", "nowhere", *QUICK], at_home)
    empty = flags[-1].endswith("=")
    assert done.returncode == (2 if empty else 3), text(done)
    assert ("--state_dict_path needs a value" if empty else '"nowhere" not found') in text(done)


def usual_threads(pid):
    """How many a process has in most of 25 looks: one that writes a file comes and goes."""
    looks = []
    for _ in range(25):
        looks.append(len(list(pathlib.Path(f"/proc/{pid}/task").iterdir())))
        select_pause()
    return statistics.mode(looks)


def test_as_many_threads_fetch_as_num_workers_says(lockstep, at_home, tmp_path):
    """The threads of other kinds are as many in each run."""
    threads = {}
    for number in (0, 2, 5):
        folder = tmp_path / f"run{number}"
        running = Running([lockstep, "run", "sasrec", "--dataset", at_home / "data/ml-1m", "--train_dir", folder, "--nproc", "1",
                           "--num_workers", number, "--maxlen", "10", "--num_epochs", "1000000", "--max_steps", "1000000",
                           "--eval_every", "0", "--checkpoint_every", "0", "--log_every", "1", "--threads", "1", "--status_port",
                           "0"], tmp_path)
        running.wait_for_step(folder, 20)
        worker, = running.worker_pids()
        threads[number] = usual_threads(worker)
        running.process.kill()
        running.end()
    assert (threads[2] - threads[0], threads[5] - threads[0]) == (2, 5), threads


# --- weights by their name


@pytest.fixture
def weights(at_home):
    done = start(["lockstep", "run", "sasrec", "--dataset", "ml-1m", "--train_dir", "first", "--num_epochs", "1",
                  "--batch_size", "45", "--maxlen", "10", "--hidden_units", "8", *QUICK[4:]], at_home)
    assert done.returncode == 0, text(done)
    files = list((at_home / "ml-1m_first").glob("SASRec.epoch=1.*.pth"))
    assert len(files) == 1
    return files[0]


def go_on(folder, weights, *flags):
    return start(["lockstep", "run", "sasrec", "--dataset", "ml-1m", "--train_dir", "second", "--batch_size", "45", "--maxlen",
                  "10", "--hidden_units", "8", "--log_every", "1", "--state_dict_path", weights, *QUICK[4:], *flags], folder)


@pytest.mark.parametrize("name, epoch", [("SASRec.epoch=200.lr=0.001.layer=2.head=1.hidden=8.maxlen=10.pth", 200),
                                         ("model.epoch=3.pth", 3), ("weights.pth", 0)])
def test_training_goes_on_with_the_epoch_after_the_one_in_the_name(at_home, weights, name, epoch):
    weights.rename(at_home / name)
    done = go_on(at_home, name, "--num_epochs", epoch + 2)
    assert done.returncode == 0, text(done)
    said = f"weights from {name}, trained for {epoch} epochs: begins with epoch {epoch + 1}"
    assert (said in text(done)) == (epoch > 0), text(done)
    steps = [record for record in records(at_home / "ml-1m_second") if "loss" in record]
    assert [record["step"] for record in steps] == [2 * epoch + i for i in (1, 2, 3, 4)]  # 90 users, 45 a step
    last = (at_home / "ml-1m_second" / "log.txt").read_text().splitlines()[-1]
    assert last.startswith(f"{epoch + 2} (")


def test_an_epoch_that_is_no_number_is_refused_before_anything_starts(at_home, weights):
    weights.rename(at_home / "SASRec.epoch=ten.pth")
    done = go_on(at_home, "SASRec.epoch=ten.pth")
    assert done.returncode == 2, text(done)
    assert 'found "ten" behind epoch= in the file\'s name' in text(done) and "rename the file" in text(done)
    assert not (at_home / "ml-1m_second").exists()


def test_weights_of_the_last_epoch_are_evaluated_and_nothing_is_trained(at_home, weights):
    done = go_on(at_home, weights, "--num_epochs", "1")
    assert done.returncode == 0, text(done)
    assert not [record for record in records(at_home / "ml-1m_second") if "loss" in record]
    log = (at_home / "ml-1m_second" / "log.txt").read_text().splitlines()
    assert log[1:] == (at_home / "ml-1m_first" / "log.txt").read_text().splitlines()[1:]


# --- another variant, another preset


def test_a_checkpoint_of_another_preset_is_refused_naming_both(at_home):
    line = ["lockstep", "run", "sasrec", "--dataset", "ml-1m", "--train_dir", "out", "--maxlen", "10", *QUICK]
    assert start(line, at_home).returncode == 0
    done = start([*line, "--preset", "guide"], at_home)
    assert done.returncode == 2, text(done)
    assert "--preset is guide in this command and paper in the checkpoint" in text(done)
    assert "--variant is tisasrec in this command and sasrec in the checkpoint" in text(done)


def test_weights_of_the_other_variant_are_refused_by_name(at_home, weights):
    done = go_on(at_home, weights, "--variant", "tisasrec")
    assert done.returncode == 2, text(done)
    assert str(weights) in text(done) and "--state_dict_path" in text(done)


# --- MovieLens-1M


@pytest.mark.parametrize("place, flags", [("data/ml-1m", []), ("ml-1m", []), ("volume/ml-1m", ["--data_dir", "volume"]),
                                          ("elsewhere", ["--dataset", "elsewhere/ratings.dat"])])
def test_movielens_1m_is_found_where_it_lies(tmp_path, place, flags):
    write_movielens(tmp_path / place)
    done = start(["lockstep", "run", "sasrec", "--dataset", "ml-1m", *flags, "--maxlen", "10", *QUICK], tmp_path)
    assert done.returncode == 0, text(done)
    assert f"{place}/ratings.dat (ratings.dat)" in text(done)
    assert checkpoints(tmp_path / ("elsewhere_default" if "elsewhere" in place else "ml-1m_default"))


def test_the_other_files_of_movielens_are_not_needed(tmp_path):
    folder = write_movielens(tmp_path / "data" / "ml-1m")
    (folder / "users.dat").unlink()
    (folder / "movies.dat").unlink()
    done = start(["lockstep", "run", "sasrec", "--dataset", "ml-1m", "--maxlen", "10", *QUICK], tmp_path)
    assert done.returncode == 0, text(done)


def test_movielens_without_its_ratings_is_refused_with_the_places(tmp_path):
    folder = write_movielens(tmp_path / "data" / "ml-1m")
    (folder / "ratings.dat").unlink()
    done = start(["lockstep", "run", "sasrec", "--dataset", "ml-1m", *QUICK], tmp_path)
    assert done.returncode == 3, text(done)
    assert "is a folder without ratings.dat" in text(done) and "data/ml-1m/ratings.dat" in text(done)
    done = start(["lockstep", "run", "sasrec", "--dataset", folder / "movies.dat", *QUICK], tmp_path)
    assert done.returncode == 3, text(done)
    assert "only ratings.dat holds interactions" in text(done)


def test_items_that_do_not_fit_into_memory_are_refused_before_anything_is_made(tmp_path):
    (tmp_path / "wide.txt").write_text("1 5000000\n1 2\n1 3\n1 4\n2 1\n2 2\n2 3\n2 4\n")
    done = start(["lockstep", "run", "sasrec", "--dataset", "./wide.txt", "--hidden_units", "65536", *QUICK], tmp_path)
    assert done.returncode == 3, text(done)
    for word in ("5000000 items at --hidden_units 65536 do not fit into memory", "TiB of ", "number them 1, 2, 3"):
        assert word in text(done), text(done)
