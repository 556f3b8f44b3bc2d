"""The agent's page in a real browser, and what it is drawn from."""
import json
import signal

import pytest

from browser import Browser
from jobs import http_get
from runs import SMALL_MODEL, Running, losses

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20"><rect width="40" height="20"/></svg>'


def history(port):
    """The whole of /history; nothing while nobody answers."""
    try:
        code, _, text = http_get(port, "/history")
    except OSError:
        return None
    return json.loads(text) if code == 200 and json.loads(text)["complete"] else None


def put_output(folder, step, name, text):
    path = folder / "outputs" / f"step-{step:08d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def continued(lockstep, small_dataset, tmp_path, free_port):
    """A run that lost a worker, was stopped and goes on under a second agent. Its folder has outputs."""
    port = free_port()
    folder = tmp_path / "run"
    line = [lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", folder, "--nproc", "2", "--log_every", "1",
            *SMALL_MODEL, "--num_epochs", "1000000", "--eval_every", "1", "--status_port", port]
    first = Running(line, tmp_path)
    first.wait_for_step(folder, 20)
    first.kill_worker(1)
    first.wait_for(lambda: "going on at step" in first.output(), "the recovery")
    first.wait_for_step(folder, max(losses(folder)) + 5)
    first.signal(signal.SIGTERM)
    assert first.end() == 143, first.output()
    put_output(folder, 10, "attention.svg", PICTURE)
    put_output(folder, 20, "attention.svg", PICTURE)
    put_output(folder, 20, "ranking.txt", "item 7 <b>first</b>")
    second = Running(line, tmp_path)
    second.wait_for_step(folder, max(losses(folder)) + 5)
    second.wait_for(lambda: len((history(port) or {"marks": []})["marks"]) == 2, "the marks of both agents")
    yield second, folder, port
    second.signal(signal.SIGTERM)
    assert second.end() == 143, second.output()


def test_the_page_shows_the_whole_run_after_a_restart_of_its_agent(continued, tmp_path):
    _, folder, port = continued
    found = history(port)
    recovery, start = found["marks"]
    assert recovery["cause"] == "SignalKILL" and recovery["totalSeconds"] > 0
    assert start["cause"] is None and "step-" in start["origin"] and start["step"] > recovery["step"]
    curves = {series["name"]: series["points"] for series in found["series"]}
    assert curves["loss"][0] == [1, pytest.approx(losses(folder)[1])]
    assert [step for step, _ in curves["loss"]] == list(range(1, len(curves["loss"]) + 1)), "each step once"

    with Browser(tmp_path) as page:
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for("document.querySelectorAll('#evaluations figure').length >= 2")
        assert "loss" in page.value("document.querySelector('#training figure').innerText")
        texts = page.value("[...document.querySelectorAll('#training text')].map(e => e.textContent)")
        assert len(texts) >= 5 and "step" in texts, f"ticks on both axes: {texts}"
        assert page.value("document.querySelectorAll('#training .recovery').length") == 1
        assert page.value("document.querySelectorAll('#training .start').length") == 1
        label = page.value("document.querySelector('#training svg').getAttribute('aria-label')")
        assert label.startswith("loss: ") and " at step 1, " in label

        # The value under the pointer, and what a line stands for.
        tip = "document.querySelector('#training .tip')"
        page.value("document.querySelector('#training svg').scrollIntoView({block: 'center'})")
        part = page.value("(line => line.x1.baseVal.value / line.ownerSVGElement.clientWidth)"
                          "(document.querySelector('#training .recovery'))")
        page.point_at("#training svg", part)
        page.wait_for(f"!{tip}.hidden && {tip}.innerText.includes('SignalKILL, going on at step')")
        assert page.value(f"{tip}.innerText").startswith("step ")
        page.point_at("h1")
        page.wait_for(f"{tip}.hidden")
        # The same by the keyboard: the newest point first.
        page.value("document.querySelector('#training svg').focus()")
        page.press("ArrowLeft")
        page.wait_for(f"!{tip}.hidden")

        # The newest outputs by name and step; a text is shown as it is.
        page.wait_for("document.querySelectorAll('#outputs img').length == 1 && "
                      "document.querySelector('#outputs img').naturalWidth > 0")
        assert page.value("document.querySelector('#outputs img').src").endswith("/outputs/step-00000020/attention.svg")
        page.wait_for("document.querySelector('#outputs pre').textContent == 'item 7 <b>first</b>'")
        page.value("(s => { s.selectedIndex = 1; s.dispatchEvent(new Event('change')); })"
                   "(document.querySelector('#outputs select'))")
        page.wait_for("document.querySelector('#outputs img').src.endsWith('/step-00000010/attention.svg')")

        # What comes while it is open.
        put_output(folder, 30, "ranking.txt", "item 9")
        page.wait_for("document.querySelector('#outputs').innerText.includes('step 30')")

        # Folded curves are drawn when they are unfolded; a narrow window needs no scrolling to the side.
        page.value("document.querySelector('details').open = true")
        page.wait_for("document.querySelectorAll('#rest .curve').length == 3")
        for scheme in ("light", "dark"):
            page.prefer(scheme)
            page.resize(400, 800)
            page.wait_for("document.documentElement.scrollWidth <= 400")
            ink, paper = page.value("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
            assert ink != paper
        assert not page.errors


def test_a_drawing_cannot_run_scripts_in_the_page_s_place(continued, tmp_path):
    _, folder, port = continued
    put_output(folder, 40, "bad.svg", '<svg xmlns="http://www.w3.org/2000/svg"><title>before</title>'
                                      '<script>document.querySelector("title").textContent = "after"</script></svg>')
    code, headers, _ = http_get(port, "/outputs/step-00000040/bad.svg")
    assert code == 200 and headers["Content-Type"] == "image/svg+xml"
    assert headers["X-Content-Type-Options"] == "nosniff" and "sandbox" in headers["Content-Security-Policy"]
    with Browser(tmp_path) as page:
        page.open(f"http://127.0.0.1:{port}/outputs/step-00000040/bad.svg")
        assert page.value("document.querySelector('title').textContent") == "before"


def test_another_node_s_page_says_where_the_whole_run_is(lockstep, small_dataset, tmp_path, free_port):
    port = free_port()
    running = Running([lockstep, "run", "sasrec", "--dataset", small_dataset, "--train_dir", tmp_path / "run", *SMALL_MODEL,
                       "--nnodes", "2", "--node_rank", "1", "--coordinator", f"127.0.0.1:{free_port()}",
                       "--status_port", port], tmp_path, LOCKSTEP_TOKEN="secret")

    def answers():
        try:
            return http_get(port, "/healthz")[0] == 200
        except OSError:
            return False
    running.wait_for(answers, "the page")
    for path in ("/history", "/outputs", "/outputs/step-00000001/a.txt"):
        code, _, text = http_get(port, path)
        assert code == 404 and "node 0's agent has the run's folder" in text
    with Browser(tmp_path) as page:
        page.open(f"http://127.0.0.1:{port}/")
        page.wait_for("document.body.innerText.includes('is on the page of node 0')")
        assert page.value("document.querySelector('#training-box').hidden")
        assert not page.errors
    running.signal(signal.SIGTERM)
    running.end()
