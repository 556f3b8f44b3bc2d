"""What runs inside the ranks of a Python program under `lockstep launch`: forked or started, it is the program alone, and still its
steps, progress and errors are seen."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from programs import ROOT, python_with_torch, text
from test_launch import PROGRAMS, WITHOUT_TORCH, Launch, environment, launch, losses_of  # noqa: F401  (launch is a fixture)
from test_page import history

WAYS = pytest.mark.parametrize("how", [[], ["--no_zygote"]], ids=["zygote", "exec"])
# Where the way from the beginning imports torch in each rank.
SLOW_WAYS = pytest.mark.parametrize("how", [[], pytest.param(["--no_zygote"], marks=pytest.mark.long)], ids=["zygote", "exec"])
TRAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.AdamW([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""


def metrics_of(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


# ---- nothing is different ----

@SLOW_WAYS
def test_everything_works_as_in_a_python_of_its_own(launch, tmp_path, how):  # noqa: F811
    done = launch("--nproc", 2, *how, PROGRAMS / "everything.py", "a b")
    assert done.returncode == 0 and done.stdout.count("everything works") == done.stdout.count("at its end") == 2, text(done)
    assert (tmp_path / "random-0").read_text() != (tmp_path / "random-1").read_text()


@pytest.mark.long  # a C++ compiler, two minutes
@WAYS
def test_torch_compile_works(launch, how):  # noqa: F811
    done = launch("--nproc", 1, *how, PROGRAMS / "everything.py", "a b", "compile")
    assert done.returncode == 0 and "everything works" in done.stdout, text(done)


@WAYS
def test_how_the_program_ends_is_kept(launch, tmp_path, how):  # noqa: F811
    """Each start another way."""
    (tmp_path / "train.py").write_text("""
import os, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0:
    sys.exit(7)
if attempt == 1:
    sys.exit("no")
if attempt == 2:
    os._exit(3)
if attempt == 3:
    1 / 0
sys.exit()
""")
    done = launch("--nproc", 1, "--max_restarts", 9, *how, "train.py", **WITHOUT_TORCH)
    assert done.returncode == 0, text(done)
    for said in ("its exit code was 7", "(Crash): no", "its exit code was 3", "ZeroDivisionError: division by zero (train.py:11, in <module>)"):
        assert said in done.stderr, text(done)


@WAYS
def test_an_own_sitecustomize_runs_and_the_environment_is_the_programs_own(launch, tmp_path, how):  # noqa: F811
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import builtins\nbuiltins.was_customized = True\n")
    (tmp_path / "train.py").write_text("""
import os, subprocess, sys
print("customized", was_customized, os.environ["PYTHONPATH"], "LOCKSTEP_BEAT_FD" in os.environ, "sitecustomize" in sys.modules)
print(subprocess.run([sys.executable, "-c", "import sys; print('child', was_customized, 'lockstep' in sys.modules)"],
                     capture_output=True, text=True).stdout)
""")
    done = launch("--nproc", 1, *how, "train.py", PYTHONPATH=str(tmp_path / "own"), **WITHOUT_TORCH)
    assert done.returncode == 0, text(done)
    assert f"customized True {tmp_path / 'own'} False True" in done.stdout and "child True False" in done.stdout, text(done)


def test_numpy_has_its_threads_although_the_zygote_had_one(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text("""
import os, numpy
numpy.ones((512, 512)) @ numpy.ones((512, 512))
print("threads", len(os.listdir("/proc/self/task")))
""")
    seen = [re.search(r"threads \d+", launch("--nproc", 1, *how, "train.py").stdout).group() for how in ([], ["--no_zygote"])]
    assert seen[0] == seen[1]


# ---- steps and errors are seen ----

@SLOW_WAYS
def test_steps_are_counted(lockstep, tmp_path, how):
    job = Launch(lockstep, tmp_path, *how, "--nproc", "2", PROGRAMS / "ddp.py", "--folder", tmp_path, "--epochs", "1000", "--sleep", "0.2")
    job.wait_for_step(3)
    status = job.wait_for_status(lambda s: (s["progress"] or {}).get("stepsPerSecond"), "steps per second")
    assert 0 < status["progress"]["stepsPerSecond"] < 10
    job.wait_for(lambda: re.search(r'lockstep_step\{rank="1"\} [1-9]', metrics_of(job.port)), "metrics of rank 1")
    assert re.search(r'lockstep_steps_total\{rank="0"\} [1-9]', metrics_of(job.port))
    job.signal(signal.SIGKILL)


@WAYS
def test_the_error_is_known_although_nothing_is_printed(launch, tmp_path, how):  # noqa: F811
    (tmp_path / "train.py").write_text("""
import os, sys
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
sys.excepthook = lambda *error: None
def main():
    raise ValueError("nobody prints this")
main()
""")
    done = launch("--nproc", 1, "--max_restarts", 0, *how, "train.py", **WITHOUT_TORCH)
    assert done.returncode == 1 and "ValueError: nobody prints this (train.py:6, in main)" in done.stderr, text(done)


@WAYS
def test_a_crash_is_named_with_its_line(launch, tmp_path, how):  # noqa: F811
    (tmp_path / "train.py").write_text("import ctypes\nctypes.string_at(0)\n")
    done = launch("--nproc", 1, "--max_restarts", 0, *how, "train.py", **WITHOUT_TORCH)
    assert done.returncode == 139 and re.search(r"SEGV.*Segmentation fault \(", done.stderr), text(done)


def test_a_rank_that_ends_by_itself_just_before_it_is_killed_is_started_again(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text(TRAIN + """
import os, signal, threading
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):  # by one of them the agent asks for the stack, and a moment later it kills
        signal.signal(number, lambda *_: os._exit(0))
    threading.Event().wait()
""")
    done = launch("--nproc", 2, "--stall_timeout_seconds", 2, "train.py")
    assert done.returncode == 0 and "has shown no progress" in text(done), text(done)


@SLOW_WAYS
def test_a_step_that_hangs_shows_the_stacks_of_all_ranks(launch, tmp_path, how):  # noqa: F811
    (tmp_path / "train.py").write_text(TRAIN + """
import os, threading
import torch.distributed as dist
dist.init_process_group("gloo")
def hang():
    threading.Event().wait(1000)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        hang()
    dist.all_reduce(torch.ones(1))
""")
    done = launch("--nproc", 2, "--stall_timeout_seconds", 2, *how, "train.py")
    assert done.returncode == 0, text(done)
    assert "has shown no progress for" in done.stderr and "in hang" in done.stderr and "in all_reduce" in done.stderr, text(done)


# ---- progress in the program's own words ----

def test_a_hugging_face_trainer_says_its_progress(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "1", PROGRAMS / "hugging_face.py")
    status = job.wait_for_status(lambda s: (s["progress"] or {}).get("loss") is not None, "a loss", timeout=240)
    progress = status["progress"]
    assert progress["totalSteps"] == 600 and 0 < progress["step"] < 600
    assert 2 < progress["loss"] < 6 and progress["learningRate"] > 0 and progress["estimatedRemainingSeconds"] > 0
    job.wait_for(lambda: re.search(r'lockstep_loss\{[^}]*rank="0"[^}]*\} \d', metrics_of(job.port)), "the loss as a metric")
    job.signal(signal.SIGKILL)


@WAYS
def test_report_says_the_progress_of_any_other_program(lockstep, tmp_path, how):
    (tmp_path / "train.py").write_text("""
import os, pathlib, threading, time
import lockstep
began = time.monotonic()
if os.environ["RANK"] == "0":
    lockstep.report(step=3, total=10, loss=0.25, accuracy=0.75)
if os.environ["RANK"] == "1" or time.monotonic() < began + 0.5:
    lockstep.report(step=98, total=99)  # rank 0 is asked again too soon, rank 1 is not heard
while not (pathlib.Path(__file__).parent / "end").exists():
    threading.Event().wait(0.1)
lockstep.report(step=10, total=10, loss=0.125)
""")
    job = Launch(lockstep, tmp_path, *how, "--nproc", "2", tmp_path / "train.py", **WITHOUT_TORCH)
    status = job.wait_for_status(lambda s: s["progress"] and s["progress"]["loss"] == 0.25, "the report")
    assert (status["progress"]["step"], status["progress"]["totalSteps"]) == (3, 10)
    assert status["metrics"] == {"accuracy": 0.75}
    curves = {series["name"]: series["points"] for series in history(job.port)["series"]}
    assert curves == {"loss": [[3, 0.25]], "accuracy": [[3, 0.75]]}
    (tmp_path / "end").touch()
    assert job.end() == 0, job.output()


def test_report_does_nothing_elsewhere_and_an_installed_package_wins(launch, tmp_path):  # noqa: F811
    reports = pathlib.Path(__file__).parents[2] / "python"
    alone = subprocess.run([sys.executable, "-c", "import lockstep; lockstep.report(step=1, total=2, loss=object())"],
                           env=environment(PYTHONPATH=str(reports)), capture_output=True, text=True)
    assert alone.returncode == 0 and not text(alone), text(alone)
    (tmp_path / "packages/lockstep").mkdir(parents=True)
    (tmp_path / "packages/lockstep/__init__.py").write_text("name = 'the installed one'")
    (tmp_path / "train.py").write_text("import lockstep; print(lockstep.name)")
    for how in ([], ["--no_zygote"]):
        done = launch("--nproc", 1, *how, "train.py", PYTHONPATH=str(tmp_path / "packages"), **WITHOUT_TORCH)
        assert "the installed one" in done.stdout, text(done)


def test_the_progress_server_answers_only_who_has_the_token(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "1", "--", "sh", "-c",
                 'echo "url=$KUBEFLOW_TRAINER_SERVER_URL token=$KUBEFLOW_TRAINER_SERVER_TOKEN"; sleep 1000')
    job.wait_for(lambda: "token=/" in job.output(), "the variables")
    url, file = re.search(r"url=(\S+) token=(\S+)", job.output()).groups()
    token = pathlib.Path(file).read_text()
    assert url.startswith("http://127.0.0.1:") and oct(os.stat(file).st_mode)[-3:] == "600"

    def answer(body, secret=token, path="", method="POST"):
        request = urllib.request.Request(url + path, data=body, headers={"Authorization": f"Bearer {secret}"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:
                return reply.status
        except urllib.error.HTTPError as error:
            return error.code
    said = json.dumps({"trainerStatus": {"metrics": [{"name": "step", "value": "5"}]}}).encode()
    assert answer(said) == 200 and answer(said, secret="guess") == 401 and answer(b"step 5") == 400
    assert answer(said, path="x") == 404 and answer(None, method="GET") == 405 and answer(b" " * 100_000) == 413
    job.wait_for_status(lambda s: s["progress"] and s["progress"]["step"] == 5, "step 5")
    job.signal(signal.SIGKILL)


def test_a_server_of_kubeflows_own_is_left_alone(launch):  # noqa: F811
    done = launch("--nproc", 1, "--", "sh", "-c", 'echo "url=$KUBEFLOW_TRAINER_SERVER_URL token=$KUBEFLOW_TRAINER_SERVER_TOKEN"',
                  KUBEFLOW_TRAINER_SERVER_URL="https://trainer/x", KUBEFLOW_TRAINER_SERVER_TOKEN="/a/token")
    assert "url=https://trainer/x token=/a/token" in done.stdout, text(done)


# ---- what is forked, and what is not ----

def test_spares_become_ranks_and_a_killed_one_is_no_loss(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "1", "--spares", "2", PROGRAMS / "ddp.py", "--folder", tmp_path, "--wait_at", "8")
    job.wait_for_step(1)

    def spares():
        folders = [folder for folder in pathlib.Path("/proc").iterdir() if folder.name.isdigit()]
        found = []
        for folder in folders:
            try:
                is_child = f"PPid:\t{job.process.pid}\n" in (folder / "status").read_text()
                if is_child and (folder / "comm").read_text() == "lockstep-spare\n":
                    found.append(int(folder.name))
            except OSError:
                pass  # it has ended
        return sorted(found)
    job.wait_for(lambda: len(spares()) == 2, "two spares")
    first, second = spares()
    os.kill(first, signal.SIGKILL)
    os.kill(job.pid_of(0), signal.SIGKILL)
    job.wait_for_status(lambda status: status["recoveriesTotal"] == 1, "a recovery")
    assert job.pid_of(0) == second
    assert job.end() == 0, job.output()


@pytest.mark.long
def test_a_variable_that_is_set_before_the_import_that_reads_it_counts(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text("""
import os
os.environ["OMP_NUM_THREADS"] = "2"
import torch
os.environ["OMP_NUM_THREADS"] = "5"  # too late, here as anywhere
print("threads", torch.get_num_threads())
""")
    done = launch("--nproc", 2, "train.py")
    assert done.returncode == 0 and done.stdout.count("threads 2") == 2, text(done)
    assert "it sets OMP_NUM_THREADS before it imports torch" in done.stderr
    again = launch("--nproc", 2, "train.py")
    assert "no rank is forked any more" in again.stderr and "starts again" not in again.stderr, text(again)
    (tmp_path / "train.py").write_text("import torch\nprint('edited')\n")
    edited = launch("--nproc", 2, "train.py")
    assert edited.stdout.count("edited") == 2 and "lockstep:" not in edited.stderr.replace("lockstep: goodput", ""), text(edited)


@pytest.mark.long
def test_a_package_that_starts_a_thread_is_left_out_from_then_on(launch, tmp_path):  # noqa: F811
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "threads_at_import.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n")
    (tmp_path / "train.py").write_text("""
import sys
print("parent", "threads_at_import" in sys.modules, "decimal" in sys.modules)
import threads_at_import, decimal
""" + TRAIN)
    variables = {"PYTHONPATH": str(packages)}
    assert "parent False" in launch("--nproc", 1, "train.py", **variables).stdout
    done = launch("--nproc", 1, "train.py", **variables)
    assert done.returncode == 0 and "parent False True" in done.stdout, text(done)
    (known,) = (tmp_path / "cache/lockstep/imports").iterdir()
    assert "threads" in json.loads(known.read_text())["left_out"]["threads_at_import"]
    known.write_text('{"key": 3, "imports": [[]]')  # damaged: as if nothing was known
    done = launch("--nproc", 1, "train.py", **variables)
    assert done.returncode == 0 and "parent False" in done.stdout, text(done)


def test_the_zygote_is_the_first_that_a_lack_of_memory_ends_and_ranks_are_not(lockstep, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "1", PROGRAMS / "ddp.py", "--folder", tmp_path, "--epochs", "1000", "--sleep", "0.2")
    job.wait_for_step(1)
    agent = job.process.pid
    children = {int(pid) for pid in pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()}
    (zygote,) = children - {job.pid_of(0)}
    score = {pid: pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in (agent, zygote, job.pid_of(0))}
    assert score[zygote] == "1000" and score[job.pid_of(0)] == score[agent]
    job.signal(signal.SIGKILL)


# Every CPython that this machine has beside the tests' own; the oldest that is forked is 3.10.
PYTHONS = [pathlib.Path(sys.executable), *sorted(pathlib.Path.home().glob(".pyenv/versions/3.*/bin/python3"))]
PYTHONS = [path for path in PYTHONS if not re.search(r"/3\.[0-8]\.", str(path))]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_it_works_without_torch(launch, tmp_path, python):  # noqa: F811
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "train.py").write_text("""
import sys, lockstep
print(sys.prefix, sys.argv, "torch" in sys.modules)
lockstep.report(step=1)
if "x" in sys.argv:
    raise ValueError("the end")
""")
    done = launch("--nproc", 2, "--max_restarts", 0, "--", tmp_path / "venv/bin/python", "train.py", "x")
    assert done.stdout.count(f"{tmp_path / 'venv'} ['train.py', 'x'] False") == 2, text(done)
    assert "ValueError: the end (train.py:6, in <module>)" in done.stderr
    assert ("only 3.10 and later are forked" in done.stderr) == ("/3.9." in str(python)), text(done)


# The oldest PyTorch that is promised, and the newest: in 2.15 "nccl" is another backend, and triton complains at the end of
# what is not freed.
@pytest.mark.long
@pytest.mark.parametrize("version", ["2.4.0", "2.15.0"])
def test_other_versions_of_torch(launch, tmp_path, version):  # noqa: F811
    python = python_with_torch(version)
    losses = {}
    for name, how in {"zygote": [], "exec": ["--no_zygote"]}.items():
        (tmp_path / name).mkdir()
        done = launch("--nproc", 2, *how, "--", python, PROGRAMS / "ddp.py", "--folder", tmp_path / name, "--fail_at", 8)
        assert done.returncode == 0 and "a fault of this program (ddp.py:" in done.stderr, text(done)
        assert "no rank is forked" not in done.stderr and "nanobind" not in done.stderr, text(done)
        losses[name] = losses_of(tmp_path / name)
    assert losses["zygote"] == losses["exec"]


# ---- lockstep doctor ----

def test_doctor_says_what_a_program_will_get(lockstep, run, tmp_path):
    (tmp_path / "train.py").write_text("")
    variables = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    done = run([lockstep, "doctor", "--", "python3", "train.py"], cwd=tmp_path, **variables)
    assert done.returncode == 0, text(done)
    for line in (r"starts +forked from a zygote", r"interpreter +Python 3\.\d+\.\d+, /", r"PyTorch +\d+\.\d+", r"preloaded .*torch", r"GPUs +\d"):
        assert re.search(line, done.stdout), text(done)
    found = json.loads(run([lockstep, "doctor", "--json", "--", "sh", "run.sh"], cwd=tmp_path, **variables).stdout)
    assert found["program"] == "sh run.sh" and "only Python" in found["why_no_fork"]
    assert found["level"] == 0 and "is not looked at" in found["why_level"]
    (tmp_path / "broken.py").write_text("def")
    for words, why in ((["torchrun", "train.py"], "starts ranks itself"), (["python3", "none.py"], "none.py cannot be read: "),
                       (["python3", "broken.py"], "broken.py cannot be read: invalid syntax")):
        refused = run([lockstep, "doctor", "--", *words], cwd=tmp_path, **variables)
        assert refused.returncode == 2 and why in refused.stderr, text(refused)


UNCHANGED = """
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(nn.Linear(1, 1))
for step in range(3):
    model(0).backward()
"""
CHANGED = """
import lockstep, helpers
lockstep.init_process_group()
run = lockstep.restore(model=helpers.model())
for step in run.steps(3):
    pass
"""
MODEL = "from lockstep import DistributedDataParallel\ndef model():\n    return DistributedDataParallel(0)"


@pytest.mark.parametrize(("source", "helpers", "level", "why", "to_change"), [
    (UNCHANGED, "", 0, "it does not use the package lockstep",
     ["train.py:5 has torch.distributed.init_process_group: write lockstep.init_process_group",
      "nothing calls lockstep.restore: write run = lockstep.restore(model=model, optimizer=optimizer) before the loop",
      "the loop at train.py:7: write for step in run.steps(total)"]),
    (CHANGED, MODEL, 1, "train.py:4 calls lockstep.restore", []),
    (CHANGED, "import torch\nfrom lockstep import DistributedDataParallel\ndef model():\n    return DistributedDataParallel(0)\ndef main():\n    torch.distributed.init_process_group()\n"
     "if __name__ == '__main__':\n    main()", 1, "train.py:4 calls lockstep.restore", []),
    (CHANGED, "import torch\ndef model():\n    return torch.nn.parallel.DistributedDataParallel(0)", 1, "train.py:4 calls lockstep.restore", []),
    (CHANGED, "def model():\n    pass", 0, "it uses the package lockstep in part",
     ["nothing wraps a model: write model = lockstep.DistributedDataParallel(model)"]),
    (CHANGED, "import torch\ndef model():\n    torch.distributed.new_group()", 0,
     "helpers.py:3 has a group of the program's own, which cannot be recovered when a rank is lost", []),
    ("from transformers import Trainer", "", 0, "transformers' Trainer is recovered by lockstep launch --recover",
     ["write --recover before the program's name, and it reaches level 1"]),
    ("import transformers\nclass Mine(transformers.Trainer):\n    pass", "", 0, "transformers' Trainer is recovered by lockstep launch --recover",
     ["write --recover before the program's name, and it reaches level 1"]),
    ("from lockstep.hf import Trainer", "", 1, "it uses the Trainer of lockstep.hf", []),
    ("import lightning, transformers", "", 0, "Lightning's Trainer is recovered by lockstep launch --recover",
     ["write --recover before the program's name, and it reaches level 1"]),
    ("from lockstep.lightning import Strategy", "", 1, "it uses the Strategy of lockstep.lightning", []),
    ("from lightning.fabric import Fabric\nfor batch in loader:\n    fabric.backward(loss)", "", 0,
     "Lightning Fabric has a loop and a wrapper of its own, which the package lockstep does not know yet", []),
    (CHANGED.replace("run.steps(3)", "range(3)") + "    for batch in loader:\n        helpers.loss(batch).backward()\n", MODEL, 0,
     "it uses the package lockstep in part",
     ["the loops at train.py:5 and 7: write for epoch in run.epochs(n) and for batch in run.batches(loader)"]),
    (CHANGED.replace("run.steps(3)", "run.epochs(3)") + "    for i, batch in enumerate(run.batches(loader)):\n        helpers.loss(batch).backward()\n", MODEL, 0,
     "it uses the package lockstep in part",
     ["train.py:7 has enumerate(run.batches(…)), which counts from 0 in a new rank: write for batch in run.batches(loader), with run.batch as "
      "its number"]),
], ids=["unchanged", "changed", "a program as a module", "torch's wrapper", "no wrapper", "refused", "a Trainer", "one that derives from it", "the package's Trainer",
        "Lightning", "the package's Strategy", "a framework",
        "two loops", "a counter"])
def test_which_level_a_program_reaches(tmp_path, monkeypatch, source, helpers, level, why, to_change):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "helpers.py").write_text(helpers)
    monkeypatch.chdir(tmp_path)
    names = {"os": os, "sys": sys}  # which rank_start.py has imported
    exec((ROOT / "runner/agent/python/program_level.py").read_text(), names)
    found = names["level_of_program"](["train.py"])
    assert found["why_level"].startswith(why) and (found["level"], found["to_change"]) == (level, to_change)
    assert names["level_of_program"](["-m", "train"])["level"] == level


def test_doctor_says_the_level_and_the_lines_to_change(lockstep, run, tmp_path):
    (tmp_path / "train.py").write_text(UNCHANGED)
    done = run([lockstep, "doctor", "--", "python3", "train.py"], cwd=tmp_path, **environment(XDG_CACHE_HOME=str(tmp_path / "cache")))
    assert re.search(r"^level +0: a lost rank costs a start of all ranks \(it does not use the package lockstep\)$", done.stdout, re.M), text(done)
    assert re.search(r"^to change +train\.py:5 has torch\.distributed\.init_process_group: write", done.stdout, re.M), text(done)
