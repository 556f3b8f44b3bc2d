"""Checkpoints of programs that use the package `lockstep`: what is left when no rank is, and where a run goes on that was asked to end."""
import re
import shutil
import signal
import subprocess
import sys

import pytest

from jobs import is_alive, wait_until
from programs import clean_environment, text
from runs import Running
from test_own_exact import MORE, processes_of
from test_own_program import CASES, KILLS, PACKAGE, VENV, assert_equal, own, launch, result_of  # noqa: F401  (own and launch are fixtures)

ALL_RANKS = ["0:7:forward", "1:7:forward", "2:7:forward"]


@pytest.fixture
def train(lockstep, run, tmp_path):
    """train(FOLDER, "--case", …) → CompletedProcess of a launch with three ranks, a checkpoint after every third step."""
    def call(folder, *words, flags=(), checkpoints=None, **environment):
        folder.mkdir(exist_ok=True)
        return run([lockstep, "launch", "--status_port", "0", "--nproc", "3", "--max_restarts", "20", *flags, CASES, "--folder", folder,
                    "--checkpoint", "3", *words], cwd=tmp_path,
                   **clean_environment(PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(tmp_path.parent / "cache"),
                                       LOCKSTEP_CHECKPOINT_DIR=str(checkpoints or folder / "checkpoints"), **environment))
    return call


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """undisturbed(CASE) is the result of a run of this case that nothing happened to."""
    results = {}

    def call(own, case):  # noqa: F811
        if case not in results:
            results[case] = result_of(own(case))
        return results[case]
    return call


def words_of(moments, flag="--kill"):
    return [word for moment in moments for word in (flag, moment)]


def steps_in(folder):
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("step-*"))


def damage(path):
    """One bit."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("case", ["Unseeded", pytest.param("Transformer", marks=pytest.mark.long), pytest.param("Epochs", marks=pytest.mark.long)])
def test_when_all_ranks_are_killed_they_go_on_from_the_checkpoint(own, undisturbed, train, tmp_path, lockstep, run, case):  # noqa: F811
    done = train(tmp_path / "out", "--case", case, *words_of(ALL_RANKS))
    assert done.returncode == 0, text(done)
    assert re.search(r"state from \S+/checkpoints/step-0000000[36]; [1-9] steps? redone", text(done)), text(done)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, case))
    assert steps_in(tmp_path / "out/checkpoints") == [9, 12]
    # The commands for Lockstep's own checkpoints know these.
    verified = run([lockstep, "ckpt", "verify", tmp_path / "out/checkpoints"])
    assert verified.returncode == 0, text(verified)
    assert "12" in run([lockstep, "ckpt", "ls", tmp_path / "out/checkpoints"]).stdout


@pytest.mark.parametrize(("case", "moment"), [
    pytest.param("Transformer", "0:5:backward", marks=pytest.mark.long), pytest.param("Unseeded", "1:5:last gradient", marks=pytest.mark.long),
    ("Epochs", "2:4:optimizer")])
def test_a_run_that_is_asked_to_end_writes_a_checkpoint_and_goes_on_later(own, undisturbed, train, tmp_path, case, moment):  # noqa: F811
    stopped = train(tmp_path / "out", "--case", case, "--stop", moment)
    assert stopped.returncode == 143, text(stopped)
    assert f"lockstep: no checkpoint in {tmp_path}/out/checkpoints, the run begins at step 0" in text(stopped), text(stopped)
    made, = steps_in(tmp_path / "out/checkpoints")[-1:]
    assert made in (5, 6, 7)
    assert (tmp_path / "out/losses-0.txt").read_text().count("\n") == made, "rank 0 has made steps that are not in the checkpoint"
    resumed = train(tmp_path / "out", "--case", case)
    assert resumed.returncode == 0, text(resumed)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, case))
    # A run that is over is not made again.
    again = train(tmp_path / "out", "--case", case)
    assert case == "Epochs" or "lockstep: all 12 steps are made already" in text(again), text(again)  # the last epoch is not over in it
    assert again.returncode == 0 and (tmp_path / "out/losses-0.txt").read_text().count("\n") == 12, text(again)


def test_ctrl_c_ends_the_run_after_its_iteration_with_a_checkpoint(own, undisturbed, train, tmp_path):  # noqa: F811
    stopped = train(tmp_path / "out", "--case", "Transformer", "--stop", "0:4:reduced", "--stop-signal", "SIGINT")
    assert stopped.returncode == 130 and "Ctrl-C again leaves at once" in text(stopped), text(stopped)
    assert "KeyboardInterrupt" not in text(stopped) and steps_in(tmp_path / "out/checkpoints")[-1] in (4, 5, 6), text(stopped)
    resumed = train(tmp_path / "out", "--case", "Transformer")
    assert resumed.returncode == 0, text(resumed)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, "Transformer"))


def test_a_second_ctrl_c_ends_the_run_at_once(lockstep, tmp_path):
    """Also while a checkpoint is being written, here to a volume that hangs."""
    folder = tmp_path / "out"
    folder.mkdir()
    job = Running([lockstep, "launch", "--status_port", 0, "--nproc", 3, MORE, "--folder", folder, "--case", "HangingVolume", "--checkpoint", 3],
                  tmp_path, PATH=f"{VENV}:/usr/bin:/bin", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(tmp_path.parent / "cache"),
                  LOCKSTEP_CHECKPOINT_DIR=str(folder / "checkpoints"))
    job.wait_for(lambda: (folder / "losses-0.txt").exists(), "the loop")
    job.signal(signal.SIGINT)
    job.wait_for(lambda: "Ctrl-C again leaves at once" in job.output(), "what is said of the first one")
    job.signal(signal.SIGINT)
    assert job.end() == 130 and "stopped by a second Ctrl-C" in job.output(), job.output()
    pids = [pid for rank in range(3) for pid in processes_of(folder, rank)]
    assert len(pids) == 3, job.output()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "end of the ranks")


def test_ctrl_c_ends_a_program_without_checkpoints_as_it_ends_any_program(launch, tmp_path):  # noqa: F811
    done = launch(CASES, "--folder", tmp_path, "--stop", "0:4:reduced", "--stop-signal", "SIGINT")
    assert done.returncode == 130 and "KeyboardInterrupt" in text(done), text(done)
    # Between the program's lines there may be some of torch, which calls the program's forward(). The last one is the program's.
    frames = [line for line in text(done).splitlines() if ', in ' in line and '  File "' in line]
    last = {line.split("]")[0]: line for line in frames}
    assert last and all("/cases.py" in line for line in last.values()), text(done)


def test_a_folder_that_the_program_does_not_use_is_said(launch, tmp_path):  # noqa: F811
    done = launch(CASES, "--folder", tmp_path, "--case", "Collectives", LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    assert done.returncode == 0 and not (tmp_path / "checkpoints").exists()
    assert ("lockstep: LOCKSTEP_CHECKPOINT_DIR is set, and nothing will be written there, because the program does not call run.checkpoint before "
            "its loop") in text(done), text(done)


@pytest.mark.parametrize("stop", ["1:5:backward", pytest.param("0:-2:restore", marks=pytest.mark.long)], ids=["rank 0 is lost after that", "rank 0 is being started again"])
def test_a_run_that_is_asked_to_end_without_rank_0_writes_what_the_others_hold(own, undisturbed, train, tmp_path, stop):  # noqa: F811
    stopped = train(tmp_path / "out", "--case", "Transformer", "--kill", "0:5:last gradient", "--stop", stop)
    assert stopped.returncode == 143, text(stopped)
    # On a busy machine a new rank 0 may be there before the launcher hears of the end.
    has_new = "going on at step 5 with 3 ranks" in text(stopped)
    assert has_new or re.search(r"rank [12] has written the checkpoint \S+/step-00000005, because there is no rank 0\n", text(stopped)), text(stopped)
    names = sorted(path.name for path in (tmp_path / "out/checkpoints").iterdir())
    if names[0].startswith(".tmp-r0-") and names[0].endswith("-step-00000003"):  # rank 0 was still writing it
        names[0:2] = ["latest", "step-00000003"]
    assert names == ["latest", "step-00000003", "step-00000005"]
    resumed = train(tmp_path / "out", "--case", "Transformer")
    assert resumed.returncode == 0 and "going on from the checkpoint " in text(resumed), text(resumed)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, "Transformer"))


@pytest.mark.long
def test_ranks_that_are_lost_meanwhile_change_nothing(own, undisturbed, train, tmp_path):  # noqa: F811
    stopped = train(tmp_path / "out", "--case", "Pictures", *words_of(KILLS[:5]), "--stop", "1:6:last gradient")
    assert stopped.returncode == 143, text(stopped)
    resumed = train(tmp_path / "out", "--case", "Pictures", *words_of(KILLS))
    assert resumed.returncode == 0, text(resumed)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, "Pictures"))


def test_a_checkpoint_that_is_damaged_or_of_another_program_is_named_and_passed_over(own, undisturbed, train, tmp_path):  # noqa: F811
    folder, checkpoints = tmp_path / "out", tmp_path / "out/checkpoints"
    assert train(folder, "--case", "Transformer", "--stop", "0:7:backward").returncode == 143
    newest, before = steps_in(checkpoints)[::-1]
    damage(checkpoints / f"step-{newest:08}/optimizer.safetensors")
    assert train(tmp_path / "other", "--case", "Pictures").returncode == 0
    shutil.copytree(tmp_path / "other/checkpoints/step-00000012", checkpoints / "step-00000012")
    resumed = train(folder, "--case", "Transformer")
    assert resumed.returncode == 0, text(resumed)
    assert f"step-{newest:08} is passed over: " in text(resumed) and "optimizer.safetensors is damaged" in text(resumed)
    assert "step-00000012 is passed over: belongs to another run" in text(resumed)
    assert f"lockstep: going on from the checkpoint {checkpoints}/step-{before:08}" in text(resumed)
    assert_equal(result_of(folder), undisturbed(own, "Transformer"))


@pytest.mark.long
def test_only_checkpoints_of_another_program_are_refused(train, tmp_path):
    assert train(tmp_path / "other", "--case", "Pictures").returncode == 0
    done = train(tmp_path / "out", "--case", "Transformer", flags=["--max_restarts", "0"], checkpoints=tmp_path / "other/checkpoints")
    assert done.returncode == 1
    assert ("is a checkpoint of another run (its models, or the objects given to lockstep.restore, are others); to start anew give another "
            "folder. lockstep.restore got model, optimizer, average there, and model, optimizer, schedule here") in text(done)


@pytest.mark.long
def test_an_old_node_0_does_not_replace_what_a_newer_one_has_written(train, tmp_path):
    checkpoints = tmp_path / "checkpoints"
    assert train(tmp_path / "new", "--case", "Transformer", checkpoints=checkpoints, LOCKSTEP_POD_ATTEMPT="7").returncode == 0
    shutil.rmtree(checkpoints / "step-00000012")
    old = train(tmp_path / "old", "--case", "Transformer", checkpoints=checkpoints, LOCKSTEP_POD_ATTEMPT="6")
    assert old.returncode == 0, text(old)
    assert "lockstep: no checkpoint of step 12, training goes on: " in text(old) and "another rank 0 of this run has taken over" in text(old)
    assert steps_in(checkpoints) == [9]


def test_a_full_disk_is_said_and_training_goes_on(own, undisturbed, train, tmp_path):  # noqa: F811
    """As root: on a volume that has room for nothing after the first checkpoint."""
    volume = tmp_path / "volume"
    volume.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", volume], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no volume can be mounted here: {mounted.stderr.strip()}")
    try:
        done = train(tmp_path / "out", "--case", "Transformer", checkpoints=volume)
    finally:
        subprocess.run(["umount", volume], check=True)
    assert done.returncode == 0, text(done)
    assert "lockstep: no checkpoint of step " in text(done) and "No space left on device" in text(done)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, "Transformer"))


@pytest.mark.parametrize(("environment", "arguments", "words"), [
    ({}, "every=2", "run.checkpoint needs a folder for the checkpoints: set the variable LOCKSTEP_CHECKPOINT_DIR"),
    ({"LOCKSTEP_CHECKPOINT_DIR": "/proc/none"}, "every=2", "the checkpoint folder /proc/none is not writable"),
    ({"LOCKSTEP_CHECKPOINT_DIR": "out"}, "every=0", "run.checkpoint got every=0, expected a whole number of at least 1"),
    ({"LOCKSTEP_CHECKPOINT_DIR": "out"}, "every=2, keep=1.5", "run.checkpoint got keep=1.5, expected a whole number of at least 1"),
])
def test_a_mistake_is_refused_by_name(tmp_path, environment, arguments, words):
    done = subprocess.run([sys.executable, "-c", f"import torch, lockstep\nlockstep.init_process_group()\nmodel = torch.nn.Linear(1, 1)\n"
                           f"run = lockstep.restore(model=model)\nrun.checkpoint({arguments})"], capture_output=True, text=True,
                          cwd=tmp_path, env=clean_environment(PYTHONPATH=str(PACKAGE), **environment))
    assert done.returncode == 1 and words in done.stderr, text(done)


@pytest.mark.long
@pytest.mark.parametrize(("case", "every", "killed_at"), [("Unseeded", 3, 7), pytest.param("AcrossIterations", 4, 8, marks=pytest.mark.long)])
def test_without_lockstep_the_same_checkpoints_are_written_and_read(own, undisturbed, train, tmp_path, case, every, killed_at):  # noqa: F811
    """Under torchrun. Of AcrossIterations in no iteration that only accumulates: the gradients are in no checkpoint."""
    def torchrun(*words):
        return subprocess.run([VENV / "torchrun", "--standalone", "--nproc_per_node", "3", CASES, "--folder", tmp_path / "out", "--case",
                               case, "--checkpoint", str(every), *words], capture_output=True, text=True, timeout=300,
                              env=clean_environment(PYTHONPATH=str(PACKAGE), OMP_NUM_THREADS="1",
                                                    LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "out/checkpoints")))
    (tmp_path / "out").mkdir()
    assert torchrun("--kill", f"0:{killed_at}:forward").returncode != 0
    assert steps_in(tmp_path / "out/checkpoints")[-1] == 6
    done = train(tmp_path / "out", "--case", case)
    assert done.returncode == 0, text(done)
    assert_equal(result_of(tmp_path / "out"), undisturbed(own, case))
