"""The curves of a program that uses the package `lockstep`, on the page of its agent."""
import re
import signal

from browser import Browser
from jobs import read_metrics
from own_runs import OWN, PACKAGE
from programs import ROOT, text
from test_launch import Launch, environment
from test_page import history


def curves_of(port):
    """Name → points, without the speed; empty while nobody answers."""
    return {series["name"]: series["points"] for series in (history(port) or {"series": []})["series"]
            if series["name"] != "steps_per_second"}


COMMITTED = """
import pathlib, threading, torch, lockstep
lockstep.init_process_group()
model = lockstep.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = lockstep.restore(model=model, optimizer=optimizer)
for step in run.steps(100):
    while step == 10 and not pathlib.Path("end").exists():
        threading.Event().wait(0.1)
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    if step == 9:
        run.log(loss=0.5, accuracy=0.25)
"""


def test_a_figure_has_the_step_that_it_belongs_to_and_the_progress_the_committed_ones(lockstep, tmp_path):
    (tmp_path / "train.py").write_text(COMMITTED)
    job = Launch(lockstep, tmp_path, "--nproc", "1", tmp_path / "train.py", PYTHONPATH=str(PACKAGE))
    job.wait_for(lambda: curves_of(job.port).get("accuracy"), "both parts of the report")
    assert curves_of(job.port) == {"loss": [[10, 0.5]], "accuracy": [[10, 0.25]]}
    job.wait_for(lambda: re.search(r'lockstep_evaluation_value\{[^}]*metric="accuracy"[^}]*\} 0.25', read_metrics(job.port)), "the metric")
    job.wait_for_status(lambda status: status["progress"]["step"] == 10, "the committed steps", timeout=20)
    job.signal(signal.SIGKILL)


SLOW = """
import os, threading, torch, lockstep
lockstep.init_process_group()
model = lockstep.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in lockstep.restore(model=model, optimizer=optimizer).steps(1_000_000):
    threading.Event().wait(0.05 * int(os.environ["RANK"]))
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
"""


def test_the_rank_that_the_others_wait_for_is_named(lockstep, tmp_path):
    (tmp_path / "train.py").write_text(SLOW)
    job = Launch(lockstep, tmp_path, "--nproc", "2", tmp_path / "train.py", PYTHONPATH=str(PACKAGE))
    job.wait_for_status(lambda status: status["slowest"] and status["slowest"]["rank"] == 1 and status["slowest"]["lagSeconds"] > 0.03,
                        "the lag of rank 1")
    job.signal(signal.SIGKILL)


def test_the_curves_go_on_when_the_rank_that_reports_them_is_killed(lockstep, run, tmp_path):
    job = Launch(lockstep, tmp_path, "--nproc", "2", OWN / "curves.py", TMPDIR=str(tmp_path), PYTHONPATH=str(PACKAGE))
    job.wait_for(lambda: all(len(curves_of(job.port).get(name, [])) >= 3 for name in ("loss", "accuracy")), "points of both curves")
    before = curves_of(job.port)
    done = run([lockstep, "chaos", "kill-rank", "--rank", "0"], cwd=tmp_path, **environment(TMPDIR=str(tmp_path)))
    assert done.returncode == 0, text(done)
    status = job.status()
    assert status["recoveriesTotal"] == 1, "who has waited for the recovery finds it in the status"
    recovery = status["recoveries"][0]
    job.wait_for(lambda: all(curves_of(job.port)[name][-1][0] > recovery["step"] for name in ("loss", "accuracy")), "points after it")
    found = history(job.port)
    assert [(mark["cause"], mark["step"]) for mark in found["marks"]] == [("SignalKILL", recovery["step"])]
    assert sorted(series["name"] for series in found["series"]) == ["accuracy", "eval_loss", "loss", "lr", "steps_per_second"]
    for name, points in curves_of(job.port).items():
        assert points[:len(before[name])] == before[name], f"{name}: what was there stays"
        assert [step for step, _ in points] == sorted({step for step, _ in points}), f"{name}: each step once"
    assert all(value == (step - 1) / (step - 1 + 1000) for step, value in curves_of(job.port)["accuracy"]), "each at its own step"

    with Browser(tmp_path) as page:
        page.open(f"http://127.0.0.1:{job.port}/")
        page.wait_for("document.querySelectorAll('#training figure').length == 2")
        assert page.value("[...document.querySelectorAll('#training figcaption')].map(e => e.firstChild.textContent)") == ["loss", "accuracy"]
        assert page.value("document.querySelectorAll('#training .recovery').length") == 2
        assert page.value("document.querySelector('#no-figures').hidden")
        assert page.value("document.querySelector('#evaluations').innerText").startswith("eval_loss")
        assert page.value("[...document.querySelectorAll('#training text')].every(e => e.getBBox().x >= 0)"), "no label is cut off"
        page.value("document.querySelector('details').open = true")
        page.wait_for("document.querySelectorAll('#rest .curve').length == 2")
        assert not page.errors
    job.signal(signal.SIGTERM)
    assert job.end() == 143, job.output()


def test_the_example_goes_on_with_the_losses_of_an_undisturbed_run(lockstep, run, tmp_path):
    def start(name):
        (tmp_path / name).mkdir()
        return Launch(lockstep, tmp_path, "--nproc", "3", ROOT / "examples/python/nano_gpt_keeps_state.py", "--steps", "120",
                      TMPDIR=str(tmp_path / name), PYTHONPATH=str(PACKAGE))

    def losses(job):
        return re.findall(r"^step (\d+) +loss (\S+)$", job.output(), re.M)

    hurt, undisturbed = start("hurt"), start("undisturbed")
    hurt.wait_for(lambda: losses(hurt), "losses")
    done = run([lockstep, "chaos", "kill-rank"], cwd=tmp_path, **environment(TMPDIR=str(tmp_path / "hurt")))
    assert done.returncode == 0, text(done)
    assert hurt.end() == undisturbed.end() == 0, hurt.output()
    assert "going on at step" in hurt.output()
    assert losses(hurt) == losses(undisturbed) and len(losses(hurt)) == 6
