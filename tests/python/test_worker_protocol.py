"""What docs/worker-protocol.md says, of both workers and of the agent. The same test client plays the agent for lockstep-worker and for a
program with the Python package."""
import json
import re
import signal
import sys

import pytest

from jobs import sasrec_flags
from programs import ROOT, bin_folder, clean_environment, program, text, write_interactions
from stand_in_agent import OF_A_RANK, OF_AN_AGENT, PROTOCOL, StandInAgent, VERSION

PACKAGE = bin_folder().parent / "python"
GOLDEN = ROOT / "tests/golden/worker_protocol"
FIRST, SECOND, THIRD = (1 << 32) + 1, (1 << 32) + 2, (1 << 32) + 3  # generations
ENDLESS = 10**9
# Without plans no rank of the group has a state.
OPTIONAL = [field for field, what in OF_AN_AGENT["assignment"].items() if "optional" in what and field != "plans"]


class LockstepWorker:
    name = "lockstep-worker"

    def __init__(self, folder):
        self.folder = folder
        self.data = write_interactions(folder / "small.txt")

    def command(self, steps):
        return [program(bin_folder() / "lockstep-worker"), "sasrec", "--train_dir", self.folder / "run", *sasrec_flags(self.data, steps), "--checkpoint_every", ENDLESS]

    def environment(self):
        return {"GLOO_ENABLE_STORE_V2_API": "1", "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": "1"}


class Python:
    name = "python"

    def __init__(self, folder):
        self.folder = folder
        start = folder / "start"
        start.mkdir()
        (start / "sitecustomize.py").write_text("\n".join(
            (ROOT / "runner/agent/python" / name).read_text() for name in ("rank_start.py", "sitecustomize_end.py")))

    def command(self, steps):
        return [sys.executable, ROOT / "tests/python/user_programs/own/endless.py", steps]

    def environment(self):
        return {"PYTHONPATH": f"{self.folder / 'start'}:{PACKAGE}"}


@pytest.fixture(params=[LockstepWorker, Python], ids=lambda kind: kind.name)
def kind(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def agent(tmp_path):
    with StandInAgent(tmp_path) as found:
        yield found


def start(agent, kind, local_rank, steps=ENDLESS, page=()):
    return agent.start(kind.command(steps), local_rank, page, **kind.environment())


def says_hello(agent, kind, rank):
    """And waits."""
    agent.wait_for(lambda: rank.heard, "first message")
    hello = rank.heard[0]
    assert (hello["type"], hello["protocol"], hello["kind"]) == ("hello", PROTOCOL, kind.name)
    assert (hello["local_rank"], hello["pid"]) == (rank.local_rank, rank.process.pid)
    assert isinstance(json.loads(hello["terms"]), dict)
    agent.wait_for(lambda: rank.activity() == "awaiting", "activity awaiting")
    seen = rank.on_page("alive_ns")
    agent.wait_for(lambda: rank.on_page("alive_ns") > seen, "sign of life while it waits")
    assert [one["type"] for one in rank.heard] == ["hello"]


def goes_on(agent, ranks, generation):
    """Steps are committed in this generation, by all."""
    for rank in ranks:
        agent.wait_for(lambda rank=rank: rank.said("resumed", generation=generation), f"resumed in {generation}")
        (resumed,) = rank.said("resumed", generation=generation)
        assert 0 < resumed["formed_ns"] <= resumed["synced_ns"] <= resumed["committed_ns"]
        assert 0 <= resumed["resumed_step"] < resumed["step"]
        agent.wait_for(lambda rank=rank, than=resumed["step"]: rank.on_page("step") > than, "step on the page")
        assert rank.on_page("generation") == generation
        agent.wait_for(lambda rank=rank: rank.activity() == "training", "activity training")
        assert 0 < rank.on_page("committed_ns") <= rank.on_page("changed_ns")
        requests = rank.said("store", generation=generation)
        assert requests and len({one["id"] for one in rank.said("store")}) == len(rank.said("store"))
    agent.wait_for(lambda: ranks[0].said("progress"), "progress of rank 0")
    assert not ranks[1].said("progress")


def leaves(agent, rank, generation, *causes):
    """With the state of its last commit; the step that it says."""
    agent.wait_for(lambda: rank.said("left", generation=generation), f"left of {generation}")
    (left,) = rank.said("left", generation=generation)
    assert left["cause"] in causes
    assert left["step"] >= rank.said("resumed", generation=generation)[0]["step"]
    agent.wait_for(lambda: rank.activity() == "awaiting", "activity awaiting")
    return left["step"]


# ---- the golden transcript ----

SHOWN = ("type", "generation", "rank", "local_rank", "world_size", "local_world_size", "kind", "protocol", "cause")
AT_ANY_TIME = ("progress", "metrics", "evaluation", "checkpoint")


def transcript(rank):
    """What was said, in order, with "…" for what differs from run to run; store requests that follow each other are one line."""
    lines, now_and_then = [], set()
    for direction, message in rank.conversation:
        kind = message["type"]
        shown = {name: value if name in SHOWN else "…" for name, value in sorted(message.items())}
        if kind in AT_ANY_TIME:
            now_and_then.add(f"{direction} {json.dumps(shown, ensure_ascii=False)}")
        elif kind in ("store", "store_reply"):
            if lines[-1] != "⇄ store, store_reply":
                lines.append("⇄ store, store_reply")
        else:
            lines.append(f"{direction} {json.dumps(shown, ensure_ascii=False)}")
    return "\n".join([*lines, "", "now and then:", *sorted(now_and_then), ""])


# ---- the workers ----

def test_a_worker_keeps_its_state_from_group_to_group(agent, kind):
    ranks = [start(agent, kind, local_rank) for local_rank in (0, 1)]
    for rank in ranks:
        says_hello(agent, kind, rank)
    agent.assign(FIRST, ranks)
    goes_on(agent, ranks, FIRST)
    for rank in ranks:
        rank.say("cut", generation=FIRST, cause="NodeLost")
    steps = [leaves(agent, rank, FIRST, "Cut", "PeerLost") for rank in ranks]
    agent.assign(SECOND, ranks)
    goes_on(agent, ranks, SECOND)
    assert steps[0] <= ranks[0].said("resumed", generation=SECOND)[0]["resumed_step"] <= max(steps)
    for rank in ranks:
        rank.link.shutdown(2)
    for rank in ranks:
        assert rank.process.wait(timeout=60) == 10, rank.output()
    # Which of the two was cut first, and which saw its peer leave, is chance.
    found = transcript(ranks[0]).replace('"cause": "PeerLost"', '"cause": "Cut"')
    if kind.name == "python":  # which has a metric only when a collective did not end with its group
        found = found.replace('→ {"families": "…", "type": "metrics"}\n', "")
    path = GOLDEN / f"{kind.name}.txt"
    assert path.exists() and found == path.read_text(encoding="utf-8"), f"{path} should be, if the change is meant:\n{found}"


def test_a_worker_of_another_version_than_its_agent(agent, kind):
    """Fields and messages that it does not know, and optional fields that it is not told."""
    agent.store.more = {"newer": {"field": [1]}}
    ranks = [start(agent, kind, local_rank) for local_rank in (0, 1)]
    for rank in ranks:
        says_hello(agent, kind, rank)
        rank.say("weather", tomorrow="rain")
    agent.assign(FIRST, ranks, left_out=OPTIONAL, newer="field")
    goes_on(agent, ranks, FIRST)
    for rank in ranks:
        assert 'unknown type "weather"' in rank.output()
    ranks[1].process.send_signal(signal.SIGKILL)
    step = leaves(agent, ranks[0], FIRST, "PeerLost")
    ranks[1] = start(agent, kind, 1)
    says_hello(agent, kind, ranks[1])
    agent.assign(SECOND, ranks, left_out=OPTIONAL, newer="field")
    goes_on(agent, ranks, SECOND)
    assert {rank.said("resumed", generation=SECOND)[0]["resumed_step"] for rank in ranks} == {step}
    ranks[1].say("cut", generation=SECOND, cause="NodeLost", newer="field")
    leaves(agent, ranks[1], SECOND, "Cut")


def test_a_package_is_not_placed_by_an_agent_that_does_not_say_who_hands_a_state_over(agent, tmp_path):
    kind = Python(tmp_path)
    rank = start(agent, kind, 0)
    says_hello(agent, kind, rank)
    agent.assign(FIRST, [rank])
    agent.wait_for(lambda: rank.said("resumed"), "resumed")
    rank.say("cut", generation=FIRST, cause="NodeLost")
    agent.wait_for(lambda: rank.said("left"), "left")
    agent.assign(SECOND, [rank], left_out=["plans"])
    assert rank.process.wait(timeout=60) != 0
    assert "it is older than the package lockstep" in rank.output()


def test_a_worker_ends_when_its_work_is_done(agent, kind):
    rank = start(agent, kind, 0, steps=20)
    says_hello(agent, kind, rank)
    agent.assign(THIRD, [rank])
    assert rank.process.wait(timeout=120) == 0, rank.output()
    agent.wait_for(lambda: rank.is_gone, "end of the link")
    assert rank.on_page("step") == 20 and not rank.problems
    if kind.name == "lockstep-worker":
        assert rank.said("done")


def test_a_page_of_another_version_is_refused_with_both(agent, kind):
    rank = start(agent, kind, 0, page={"version": VERSION + 1})
    assert rank.process.wait(timeout=60) != 0
    assert f"has version {VERSION + 1}, and this program writes version {VERSION}" in rank.output()


def test_all_leave_together_at_the_end_of_a_step(agent, tmp_path):
    """What only lockstep-worker is told."""
    kind = LockstepWorker(tmp_path)
    ranks = [start(agent, kind, local_rank) for local_rank in (0, 1)]
    for rank in ranks:
        says_hello(agent, kind, rank)
    agent.assign(FIRST, ranks)
    goes_on(agent, ranks, FIRST)
    for rank in ranks:
        rank.say("leave_together", generation=FIRST, leaving_code=0)
    assert len({leaves(agent, rank, FIRST, "Regroup") for rank in ranks}) == 1
    agent.assign(SECOND, ranks)
    goes_on(agent, ranks, SECOND)
    for rank in ranks:
        rank.say("leave_together", generation=SECOND, leaving_code=143)
    assert [rank.process.wait(timeout=120) for rank in ranks] == [143, 143]


# ---- the agent ----

BY_HAND = """
import json, os, sys
link = os.fdopen(os.dup(sys._lockstep_rank.link_fd), "r+b", buffering=0)
def say(message, /, **fields):
    link.write((json.dumps({"type": message, **fields}) + "\\n").encode())
"""


@pytest.fixture
def by_hand(lockstep, run, tmp_path):
    """Runs a program that speaks on its link by itself: its output and exit code."""
    def call(*lines):
        (tmp_path / "by_hand.py").write_text(BY_HAND + "\n".join(lines))
        return run([lockstep, "launch", "--status_port", "0", "--max_restarts", "0", "--no_zygote", "--", sys.executable, "by_hand.py"],
                   cwd=tmp_path, **clean_environment(XDG_CACHE_HOME=str(tmp_path / "cache")))
    return call


HELLO = 'local_rank=0, pid=os.getpid(), terms="{}"'


def test_an_agent_takes_what_an_older_or_a_newer_package_says(by_hand):
    progress = {field: 7 for field, what in OF_A_RANK["progress"].items() if "optional" not in what} | {"newer": "field"}
    done = by_hand(f'say("hello", {HELLO}, newer={{"field": 1}})',
                   "place = json.loads(link.readline())",
                   'say("outlives", newer=2)',
                   f'say("progress", **{progress})',
                   'print("placed as", place["rank"], "of", place["world_size"])')
    assert done.returncode == 0 and "placed as 0 of 1" in done.stdout, text(done)


@pytest.mark.parametrize(("line", "words"), [
    (f'say("hello", {HELLO}, protocol={PROTOCOL + 1}, kind="python", package="9.9.9")',
     f"its package lockstep 9.9.9 speaks protocol {PROTOCOL + 1}, and this agent protocol {PROTOCOL}"),
    (f'say("hello", {HELLO}, protocol="new")', 'it sent a message that the agent cannot read: message "hello": field "protocol" must be an integer'),
    ('say("weather")', 'it sent a message that the agent cannot read: message of unknown type "weather"'),
    ('link.write(b"hello\\n")', "it sent a message that the agent cannot read"),
])
def test_an_agent_ends_a_rank_that_it_does_not_understand_and_says_why(by_hand, line, words):
    done = by_hand(line, "link.readline()", 'print("goes on")')
    assert done.returncode != 0 and words in text(done) and "goes on" not in done.stdout, text(done)


# ---- the page ----

def test_the_package_and_the_start_file_have_the_numbers_of_the_page():
    sys.path.insert(0, str(PACKAGE))
    from lockstep import _link
    from stand_in_agent import ACTIVITIES, FIELDS, PAGE, table_under
    assert _link.PROTOCOL == PROTOCOL
    assert [one.name.lower() for one in _link.Activity] == [ACTIVITIES[one.value] for one in _link.Activity]
    phases = {int(number): name.strip("`") for number, name, _ in table_under("phases")}
    assert [one.name.lower() for one in _link.Phase] == [phases[one.value] for one in _link.Phase]
    assert f"| offset of the rank's memory behind the page | {_link.MEMORY_OFFSET} |" in PAGE
    assert f"| bytes of that memory | {_link.MEMORY_BYTES} |" in PAGE
    source = (ROOT / "runner/agent/python/rank_start.py").read_text()
    places = re.search(r"^STEP, COMMITTED_NS, CHANGED_NS = (\d+), (\d+), (\d+) ", source, re.M).groups()
    assert [8 * int(place) for place in places] == [FIELDS[name][0] for name in ("step", "committed_ns", "changed_ns")]
