"""Programs that use the package `lockstep` while nodes come and go: the batch of all ranks stays the same, and so do the losses."""
import collections
import re
import signal

import pytest
import torch

from jobs import free_port
from own_runs import OWN, PACKAGE
from programs import text
from test_launch import Launch, environment
from test_seen_from_outside import post

PROGRAM, TOKEN, STEPS = OWN / "elastic.py", "secret", 30


class Job:
    """Up to three nodes of one rank each, that come to the same coordinator."""

    def __init__(self, lockstep, folder, *words, rejoin_seconds=1000):
        self.lockstep, self.folder, self.port, self.nodes = lockstep, folder, free_port(), {}
        self.words = ["--rejoin_timeout_seconds", rejoin_seconds, "--coordinator", f"127.0.0.1:{self.port}", PROGRAM, folder, *words]

    def start(self, *nodes):
        for node in nodes:
            self.nodes[node] = Launch(self.lockstep, self.folder, "--nproc", 1, "--nnodes", "1:3", "--node_rank", node, *self.words,
                                      PYTHONPATH=str(PACKAGE), LOCKSTEP_TOKEN=TOKEN,
                                      XDG_CACHE_HOME=str(self.folder / "cache"),
                                      LOCKSTEP_CHECKPOINT_DIR=str(self.folder / "checkpoints"))
        return self

    def want(self, nodes):
        assert post(self.nodes[0].port, "/nodes", f'{{"nodes": {nodes}}}', TOKEN)[0] == 202

    def wait_for_gate(self, step):
        """All ranks stand before this step."""
        self.nodes[0].wait_for_status(lambda status: (status["progress"] or {}).get("step") == step, f"the gate at step {step}")

    def open(self, step):
        (self.folder / f"gate-{step}").touch()

    def leave(self, node):
        """The coordinator knows of it when this returns."""
        self.nodes[node].signal(signal.SIGTERM)
        self.nodes[0].wait_for(lambda: re.search(rf"node {node} .*leaves$", self.nodes[0].output(), re.M), f"the word that node {node} leaves")

    def end(self, *nodes, code=0):
        for node in nodes:
            assert self.nodes[node].end() == code, self.nodes[node].output()

    def output(self):
        return "".join(node.output() for node in self.nodes.values())


def steps_of(folder):
    """step → ranks, {id: times} of the batch of all ranks, and its mean loss."""
    parts = collections.defaultdict(list)
    for path in folder.glob("steps-*.txt"):
        for line in path.read_text().splitlines():
            step, rank, world, loss, *ids = line.split()
            parts[int(step)].append((int(rank), int(world), float.fromhex(loss), ids))
    found = {}
    for step, ranks in parts.items():
        worlds = {world for _, world, _, _ in ranks}
        assert len(worlds) == 1 and sorted(rank for rank, *_ in ranks) == list(range(worlds.pop())), (step, ranks)
        count = sum(len(ids) for *_, ids in ranks)
        found[step] = (len(ranks), collections.Counter(one for *_, ids in ranks for one in ids),
                       sum(loss * len(ids) for *_, loss, ids in ranks) / count)
    return found


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """words → the folder of a run with one rank and the whole batch."""
    made = {}

    def call(lockstep, run, *words):
        if words not in made:
            folder = tmp_path_factory.mktemp("alone")
            done = run([lockstep, "launch", "--status_port", 0, "--nproc", 1, PROGRAM, folder, 9, *words], cwd=folder,
                       **environment(PYTHONPATH=str(PACKAGE)))
            assert done.returncode == 0, text(done)
            made[words] = folder
        return made[words]
    return call


def assert_alike(folder, expected, ranks):
    """The same batches, each once, and losses and weights within rounding. `ranks`: their number, by step, or None: it is not known."""
    found, wanted = steps_of(folder), steps_of(expected)
    assert sorted(found) == sorted(wanted) == list(range(STEPS))
    for step, (number, ids, loss) in found.items():
        assert ids == wanted[step][1], step
        assert loss == pytest.approx(wanted[step][2], rel=1e-5), step
        assert ranks is None or number == ranks(step), step
    end, expected_end = torch.load(folder / "end.pt"), torch.load(expected / "end.pt")
    for name, tensor in end.items():
        torch.testing.assert_close(tensor, expected_end[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", [[], *(pytest.param(how, marks=pytest.mark.long) for how in (["--steps"], ["--block"], ["--workers", "2"]))],
                         ids=" ".join)
def test_nodes_leave_and_come_at_the_end_of_a_step(lockstep, run, alone, tmp_path, how):
    job = Job(lockstep, tmp_path, 3, *how, "--gate", 5, 12, 22, 27).start(0, 1, 2)
    job.wait_for_gate(5)
    job.want(2)
    job.leave(2)
    job.nodes[0].wait_for(lambda: "leaves together" in job.nodes[0].output(), "the word that a node leaves")
    job.open(5)
    job.end(2, code=143)
    job.wait_for_gate(12)
    job.want(3)
    job.start(2)
    job.nodes[0].wait_for(lambda: job.nodes[0].output().count("leaves together") == 2, "the word that a node comes")
    job.open(12)
    job.wait_for_gate(22)
    job.want(1)
    for node in (1, 2):
        job.leave(node)
    job.nodes[0].wait_for(lambda: job.nodes[0].output().count("leaves together") == 3, "the word that nodes leave")
    job.open(22)
    job.end(1, 2, code=143)
    job.open(27)
    job.end(0)
    expected = alone(lockstep, run, *(word for word in how if word == "--steps"))
    assert_alike(tmp_path, expected, lambda step: 3 if step <= 5 else 2 if step <= 12 else 3 if step <= 22 else 1)
    assert "is averaged over" not in job.output()
    assert job.nodes[0].output().count("; 0 steps redone") == 3, job.nodes[0].output()


def lose(job):
    """Node 2, while the step after the gate is made; it does not come again."""
    job.start(0, 1, 2)
    job.wait_for_gate(5)
    job.nodes[2].signal(signal.SIGKILL)
    job.open(5)
    job.end(0, 1)


@pytest.mark.parametrize("how", [["--block"], pytest.param(["--block", "--steps"], marks=pytest.mark.long)], ids=" ".join)
def test_a_step_is_divided_anew_when_a_node_is_lost_for_good(lockstep, run, alone, tmp_path, how):
    job = Job(lockstep, tmp_path, 3, *how, "--gate", 5, rejoin_seconds=1)
    lose(job)
    assert_alike(tmp_path, alone(lockstep, run, *how[1:]), lambda step: 3 if step < 5 else 2)


def test_without_a_block_that_step_is_averaged_over_the_ranks_that_are_left(lockstep, tmp_path):
    job = Job(lockstep, tmp_path, 3, "--gate", 5, rejoin_seconds=1)
    lose(job)
    assert job.output().count("the group had 3 ranks and has 2: step 5 is averaged over those that are left. In a block `with run.step()`") == 1
    found = {path.name: [line.split() for line in path.read_text().splitlines()] for path in tmp_path.glob("steps-*.txt")}
    assert sorted(len(lines) for lines in found.values()) == [5, STEPS, STEPS]


@pytest.mark.long
def test_a_checkpoint_is_taken_up_in_another_number_of_ranks(lockstep, run, alone, tmp_path):
    job = Job(lockstep, tmp_path, 3, "--checkpoint", "--gate", 12).start(0, 1, 2)
    job.wait_for_gate(12)
    for node in job.nodes.values():
        node.signal(signal.SIGTERM)
    job.open(12)
    job.end(0, 1, 2, code=143)
    done = run([lockstep, "launch", "--status_port", 0, "--nproc", 2, PROGRAM, tmp_path, 3, "--checkpoint"], cwd=tmp_path,
               **environment(PYTHONPATH=str(PACKAGE), LOCKSTEP_CHECKPOINT_DIR=str(tmp_path / "checkpoints")))
    assert done.returncode == 0, text(done)
    assert_alike(tmp_path, alone(lockstep, run), lambda step: 3 if step <= 12 else 2)


def test_with_recover_the_number_of_nodes_stays(lockstep, tmp_path):
    node = Launch(lockstep, tmp_path, "--recover", "--nproc", 1, "--nnodes", "1:2", "--node_rank", 0, "--coordinator", f"127.0.0.1:{free_port()}",
                  PROGRAM, tmp_path, 3, LOCKSTEP_TOKEN=TOKEN)
    node.wait_for_status(lambda status: status["wantedNodes"] == 2, "the status")
    code, words = post(node.port, "/nodes", '{"nodes": 1}', TOKEN)
    assert code == 400 and "2 to 2" in words, words
    node.signal(signal.SIGKILL)
