"""Agents on several hosts (network namespaces, a name server with a cache): one name, partitions, an old node 0."""
import json
import os
import pathlib
import shutil
import signal
import urllib.request

import pytest

from programs import clean_environment, leave_the_network, text, write_interactions
from hosts import Agent, Hosts, can_make_hosts
from jobs import fresh_starts, max_step, sasrec_flags
from own_runs import OWN, PACKAGE, VENV
from runs import Running, checkpoints, equal_weights, losses, records, weights

pytestmark = pytest.mark.skipif(can_make_hosts() is not None, reason=str(can_make_hosts()))
ENDLESS = 1_000_000
leave_the_network()


@pytest.fixture
def hosts(tmp_path, request):
    made = Hosts(4, tmp_path, subnet=sum(request.node.name.encode()) % 250)
    yield made
    made.close()


@pytest.fixture
def dataset(tmp_path):
    return write_interactions(tmp_path / "small.txt")


@pytest.fixture
def agents():
    started = []
    yield started
    for agent in started:
        if agent.process.poll() is None:
            agent.process.send_signal(signal.SIGKILL)
            agent.process.wait()


def start(agents, *args, **kwargs):
    agent = Agent(*args, **kwargs)
    agents.append(agent)
    return agent


def reference(run, lockstep, dataset, folder, nproc, steps, *flags):
    """The losses of an undisturbed run on one machine."""
    done = run([lockstep, "run", "sasrec", "--nproc", nproc, "--status_port", 0,
                "--train_dir", folder, *sasrec_flags(dataset, steps, "--checkpoint_every", "0", *flags)])
    assert done.returncode == 0, done.stdout + done.stderr
    return losses(folder)


STEPS_COMPARED = 50


def assert_close_after(found, expected, changes):
    """Bit-equal before the first change of the world size, and within 1e-5 for 50 steps from each of them on. No step
    is missing."""
    assert sorted(found) == list(range(1, max(found) + 1))
    assert [s for s in range(1, changes[0]) if found[s] != expected[s]] == []
    for change in changes:
        assert change + STEPS_COMPARED - 1 <= max(found), f"too few steps after the change at step {change}"
        compared = range(change, change + STEPS_COMPARED)
        assert [s for s in compared if abs(found[s] - expected[s]) > 1e-5 * abs(expected[s])] == []


def changes_of_world_size(status, first):
    """The first steps that were done with another world size than the steps before."""
    sizes = [first] + [recovery["worldSize"] for recovery in status["recoveries"]]
    return [recovery["step"] for before, recovery in zip(sizes, status["recoveries"]) if recovery["worldSize"] != before]


def assert_state_was_kept(agents, status, redone_max=1):
    """Somebody always held the state: the first start alone came from the seed, and little was done twice."""
    output = "".join(agent.output() for agent in agents)
    assert fresh_starts(output) == 1, output
    assert [r for r in status["recoveries"] if r["redoneSteps"] > redone_max] == []


def stop(*agents):
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert [agent.end() for agent in agents] == [143] * len(agents), "".join(agent.output() for agent in agents)


def assert_undisturbed(run, lockstep, dataset, folder, tmp_path, nproc):
    """All steps ran with `nproc` ranks: the losses and the final weights are those of a run that nothing happened to."""
    found = losses(folder)
    assert found == reference(run, lockstep, dataset, tmp_path / "reference", nproc, max(found))
    assert equal_weights(weights(folder), weights(tmp_path / "reference"))


@pytest.mark.long
def test_agents_meet_through_one_name(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, nodes="3", steps=200) for n in (2, 0, 1)]
    assert [node.end() for node in nodes] == [0, 0, 0], "".join(node.output() for node in nodes)
    assert_undisturbed(run, lockstep, dataset, folder, tmp_path, 3)


# A process that died leaves a machine that refuses; a machine that died swallows what is sent to it.
@pytest.mark.long
@pytest.mark.parametrize("old_address", ["refuses", "swallows"])
def test_node_0_comes_back_under_another_address_while_the_old_one_is_still_listed(run, lockstep, hosts, agents, dataset,
                                                                                   tmp_path, old_address):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    flags = ["--checkpoint_every", str(ENDLESS), "--heartbeat_timeout_seconds", "5"]
    first = start(agents, lockstep, hosts, 0, 0, dataset, folder, tmp_path, *flags, steps=ENDLESS)
    other = start(agents, lockstep, hosts, 1, 1, dataset, folder, tmp_path, *flags, steps=ENDLESS)
    first.wait_for_status(lambda s: max_step(s) > 50, "step 50")
    survivor = other.workers()
    hosts.renew("job-0.job")
    if old_address == "swallows":
        hosts.swallow(0)  # before the process ends: nobody hears of that
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    hosts.name("job-0.job", 0, 3)  # the old address stays listed; for TTL seconds the cache knows it alone
    second = start(agents, lockstep, hosts, 3, 0, dataset, folder, tmp_path, *flags, steps=ENDLESS, attempt=1)
    assert hosts.resolve(1, "job-0.job") == [hosts.address(0)]
    problem = {"refuses": "Connection refused", "swallows": "no answer"}[old_address]
    other.wait_for(lambda: f"{hosts.address(0)}:29400: {problem}" in other.output(), "word that the old address is of no use")
    lost_at = max(losses(folder))
    status = second.wait_for_status(lambda s: max_step(s) > lost_at + 20, "steps after the return of node 0")
    assert hosts.resolve(1, "job-0.job") == sorted([hosts.address(0), hosts.address(3)])
    assert status["generation"] >> 32 == 1
    assert other.workers() == survivor
    assert_state_was_kept([first, second, other], status)
    stop(second, other)
    assert checkpoints(folder) == [f"step-{max(losses(folder)):08d}"]
    assert_undisturbed(run, lockstep, dataset, folder, tmp_path, 2)


def test_a_partition_is_healed_without_losing_a_step(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    flags = ["--heartbeat_timeout_seconds", "5"]
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS)
             for n in range(3)]
    nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    workers = [node.workers() for node in nodes]
    hosts.cut(2)
    nodes[0].wait_for_status(lambda s: s["phase"] == "Recovering", "the loss of node 2", timeout=60)
    hosts.heal(2)
    again = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 3, "3 ranks again")
    status = nodes[0].wait_for_status(lambda s: max_step(s) > max_step(again) + 20, "further steps")
    assert [node.workers() for node in nodes] == workers
    assert {recovery["worldSize"] for recovery in status["recoveries"]} == {3}
    assert_state_was_kept(nodes, status)
    stop(*nodes)
    assert_undisturbed(run, lockstep, dataset, folder, tmp_path, 3)


class OwnProgram(Agent):
    """`lockstep launch` of a program with the package `lockstep`."""

    def __init__(self, lockstep, hosts, node, base, *words):
        self.hosts, self.host, self.port = hosts, node, 8080
        Running.__init__(self, ["ip", "netns", "exec", hosts.namespace(node), lockstep, "launch", "--nnodes", 3, "--node_rank", node, "--coordinator",
                                "job-0.job:29400", "--status_port", self.port, *words], base, LOCKSTEP_TOKEN="secret", LOCKSTEP_JOB="job",
                         PATH=f"{VENV}:{os.environ['PATH']}", PYTHONPATH=str(PACKAGE), XDG_CACHE_HOME=str(base / "cache"))


@pytest.mark.long
def test_a_program_s_ranks_keep_their_state_through_a_partition(run, lockstep, hosts, agents, tmp_path):
    """Nothing ends the connections of the node that is cut off: its packets vanish in the middle of a step."""
    hosts.name("job-0.job", 0)
    steps = 1500
    for node in range(3):
        agents.append(OwnProgram(lockstep, hosts, node, tmp_path, OWN / "in_pods.py", tmp_path, steps, 0.01))
    agents[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    hosts.cut(2)
    agents[0].wait_for_status(lambda s: s["phase"] == "Recovering", "the loss of node 2", timeout=60)
    hosts.heal(2)
    agents[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 3 and max_step(s) > 50, "3 ranks again")
    for agent in agents:
        assert agent.end(timeout=300) == 0, agent.output()
    expected = tmp_path / "undisturbed"
    expected.mkdir()
    done = run([lockstep, "launch", "--status_port", 0, "--nproc", 3, OWN / "in_pods.py", expected, steps, 0], cwd=expected,
               **clean_environment(PATH=f"{VENV}:{os.environ['PATH']}", PYTHONPATH=str(PACKAGE)))
    assert done.returncode == 0, text(done)
    for rank in range(3):
        made, all_made = [[line.split() for line in (folder / f"losses-{rank}.txt").read_text().splitlines()] for folder in (tmp_path, expected)]
        assert [(step, loss) for step, loss, _ in made] == [(step, loss) for step, loss, _ in all_made], "a step is missing, made twice, or another"
        assert len({pid for *_, pid in made}) == 1, "the rank was started again"


def test_fewer_nodes_go_on_and_a_joiner_is_let_in_at_a_step_boundary(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    flags = ["--rejoin_timeout_seconds", "1", "--checkpoint_every", str(ENDLESS)]
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS)
             for n in range(3)]
    nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    nodes[2].process.send_signal(signal.SIGKILL)
    smaller = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 2, "2 ranks at work")
    nodes[0].wait_for_status(lambda s: max_step(s) > max_step(smaller) + 60, "steps of 2 ranks")
    again = start(agents, lockstep, hosts, 2, 2, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS, attempt=1)
    larger = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 3, "3 ranks again")
    assert max_step(larger) > max_step(smaller)
    assert [r["cause"] for r in larger["recoveries"]][-1] == "Join"
    assert larger["recoveries"][-1]["redoneSteps"] == 0
    status = nodes[0].wait_for_status(lambda s: max_step(s) > max_step(larger) + 60, "steps of 3 ranks")
    assert_state_was_kept([*nodes, again], status)
    changes = changes_of_world_size(status, 3)
    assert len(changes) == 2
    stop(nodes[0], nodes[1], again)
    found = losses(folder)
    assert_close_after(found, reference(run, lockstep, dataset, tmp_path / "reference", 3, max(found)), changes)


@pytest.mark.long
def test_a_job_that_grows_keeps_the_curve_that_it_had(lockstep, hosts, agents, dataset, tmp_path):
    # By its address: nobody is waited for because a name may still lead elsewhere.
    coordinator = f"{hosts.address(0)}:29400"
    folder = tmp_path / "run"
    flags = ["--rejoin_timeout_seconds", "1", "--checkpoint_every", str(ENDLESS)]
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS,
                   coordinator=coordinator)
             for n in range(2)]
    smaller = nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 2, "2 ranks at work")
    nodes.append(start(agents, lockstep, hosts, 2, 2, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS,
                   coordinator=coordinator))
    larger = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 3, "3 ranks at work")
    status = nodes[0].wait_for_status(lambda s: max_step(s) > max_step(larger) + STEPS_COMPARED, "steps of 3 ranks")
    assert_state_was_kept(nodes, status, redone_max=0)
    stop(*nodes)
    found = losses(folder)
    # Two nodes of at most three have the batch of three, in two micro-batches: the same again, without a third one.
    alone = [start(agents, lockstep, hosts, n, n, dataset, tmp_path / "reference", tmp_path, *flags, nodes="2:3",
                   steps=max(found), coordinator=coordinator) for n in range(2)]
    assert [node.end() for node in alone] == [0, 0], alone[0].output()
    changes = changes_of_world_size(status, 2)
    assert changes and max_step(smaller) < changes[0]
    assert_close_after(found, losses(tmp_path / "reference"), changes)  # what differs came with the third


FINAL_STEPS = 1500


def final_metric(folder):
    """The last evaluation's NDCG@10 of a finished run."""
    return [record["valid_ndcg@10"] for record in records(folder) if "valid_ndcg@10" in record][-1]


@pytest.mark.long
def test_the_final_evaluation_after_a_change_of_world_size_lies_within_that_of_three_seeds(run, lockstep, hosts, agents,
                                                                                          ml100k, tmp_path):
    hosts.name("job-0.job", 0)
    flags = ["--rejoin_timeout_seconds", "1", "--checkpoint_every", str(ENDLESS)]
    undisturbed = {}
    for seed in (1, 2, 3):
        folder = tmp_path / f"seed-{seed}"
        done = run([lockstep, "run", "sasrec", "--nproc", 2, "--status_port", 0,
                    "--train_dir", folder, *sasrec_flags(ml100k, FINAL_STEPS, *flags, "--seed", seed)])
        assert done.returncode == 0, done.stdout + done.stderr
        undisturbed[final_metric(folder)] = seed
    low, middle, high = sorted(undisturbed)
    # The middle seed, disturbed: from 3 ranks to 2 at a step that nobody chose.
    folder = tmp_path / "disturbed"
    nodes = [start(agents, lockstep, hosts, n, n, ml100k, folder, tmp_path, *flags, "--seed", str(undisturbed[middle]),
                   nodes="2:3", steps=FINAL_STEPS) for n in range(3)]
    nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    nodes[2].process.send_signal(signal.SIGKILL)
    status = nodes[0].wait_for_status(lambda s: s["worldSize"] == 2 and s["phase"] == "Running", "2 ranks at work")
    assert [node.end() for node in nodes[:2]] == [0, 0], nodes[0].output()
    assert_state_was_kept(nodes, status)
    assert low <= final_metric(folder) <= high, f"{final_metric(folder)} is outside {sorted(undisturbed)}"


def test_a_node_that_is_asked_to_leaves_at_a_step_boundary(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    flags = ["--rejoin_timeout_seconds", "1", "--checkpoint_every", str(ENDLESS)]
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, *flags, nodes="2:3", steps=ENDLESS)
             for n in range(3)]
    nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    os.kill(nodes[2].process.pid, signal.SIGTERM)
    assert nodes[2].end() == 143, nodes[2].output()
    assert not list(pathlib.Path(folder).glob("step-*"))  # another node's leaving writes none
    status = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 2, "2 ranks at work")
    assert status["recoveries"][-1]["redoneSteps"] == 0
    status = nodes[0].wait_for_status(lambda s: max_step(s) > max_step(status) + 60, "steps of 2 ranks")
    assert_state_was_kept(nodes, status, redone_max=0)
    changes = changes_of_world_size(status, 3)
    assert len(changes) == 1
    stop(nodes[0], nodes[1])
    found = losses(folder)
    assert_close_after(found, reference(run, lockstep, dataset, tmp_path / "reference", 3, max(found)), changes)


def tell(agent, path, body, token="secret"):
    request = urllib.request.Request(f"http://{agent.hosts.address(agent.host)}:{agent.port}{path}", method="POST",
                                     data=json.dumps(body).encode(), headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 202


@pytest.mark.long
def test_the_operators_word_is_enough_while_the_name_leads_nowhere(run, lockstep, hosts, agents, dataset, tmp_path):
    nodes = [start(agents, lockstep, hosts, n, n, dataset, tmp_path / "run", tmp_path, steps=ENDLESS) for n in range(2)]
    nodes[1].wait_for(lambda: "looking for the coordinator at job-0.job:29400" in nodes[1].output(), "word of its search")
    tell(nodes[1], "/coordinator", {"address": hosts.address(0)})
    nodes[0].wait_for_status(lambda s: max_step(s) > 10 and s["worldSize"] == 2, "2 ranks at work")
    nodes[1].wait_for_status(lambda s: s["coordinator"] == f"{hosts.address(0)}:29400", "its coordinator")
    # Node 0 comes back elsewhere: nobody but the operator knows it.
    survivor = nodes[1].workers()
    nodes[0].process.kill()
    nodes[0].process.wait()
    nodes.append(start(agents, lockstep, hosts, 2, 0, dataset, tmp_path / "run", tmp_path, steps=ENDLESS, attempt=1))
    tell(nodes[1], "/coordinator", {"address": hosts.address(2)})
    lost_at = max(losses(tmp_path / "run"))
    status = nodes[2].wait_for_status(lambda s: max_step(s) > lost_at + 20 and s["worldSize"] == 2, "2 ranks at work")
    assert nodes[1].workers() == survivor
    assert_state_was_kept(nodes, status)
    stop(nodes[2], nodes[1])
    assert_undisturbed(run, lockstep, dataset, tmp_path / "run", tmp_path, 2)


def test_the_operators_word_shrinks_and_grows_a_job_without_a_wait(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    # A node that nobody told about would be waited for much longer than this test takes.
    flags = ["--rejoin_timeout_seconds", "1000", "--checkpoint_every", str(ENDLESS)]
    nodes = [start(agents, lockstep, hosts, n, n, dataset, folder, tmp_path, *flags, nodes="1:3", steps=ENDLESS)
             for n in range(3)]
    nodes[0].wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 3, "3 ranks at work")
    tell(nodes[0], "/nodes", {"nodes": 2})
    nodes[0].wait_for_status(lambda s: s["wantedNodes"] == 2, "the wanted number")
    nodes[2].signal(signal.SIGTERM)
    assert nodes[2].end() == 143, nodes[2].output()
    status = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 2, "2 ranks at work")
    nodes[0].wait_for_status(lambda s: max_step(s) > max_step(status) + 60, "steps of 2 ranks")
    tell(nodes[0], "/nodes", {"nodes": 3})
    again = start(agents, lockstep, hosts, 2, 2, dataset, folder, tmp_path, *flags, nodes="1:3", steps=ENDLESS, attempt=1)
    larger = nodes[0].wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 3, "3 ranks again")
    status = nodes[0].wait_for_status(lambda s: max_step(s) > max_step(larger) + 60, "steps of 3 ranks")
    assert_state_was_kept([*nodes, again], status, redone_max=0)
    changes = changes_of_world_size(status, 3)
    assert len(changes) == 2
    stop(nodes[0], nodes[1], again)
    found = losses(folder)
    assert_close_after(found, reference(run, lockstep, dataset, tmp_path / "reference", 3, max(found)), changes)


def states(folder):
    """path → state.json of the complete checkpoints at this moment."""
    found = {}
    for path in folder.glob("step-*/state.json"):
        try:
            found[path.parent] = json.loads(path.read_text())
        except FileNotFoundError:  # pruned or moved aside meanwhile
            pass
    return found


def attempt_of(state):
    return state["generation"] >> 32


def zombies_newest(folder):
    return max((state["step"] for state in states(folder).values() if attempt_of(state) == 0), default=0)


def put_aside(folder, to, past):
    """Copies a checkpoint of attempt 0 of a step above `past` to `to`, when there is one; its path."""
    for path, state in sorted(states(folder).items(), reverse=True):
        if attempt_of(state) != 0 or state["step"] <= past:
            continue
        try:
            return shutil.copytree(path, to / path.name)
        except (FileNotFoundError, shutil.Error):  # pruned meanwhile
            shutil.rmtree(to, ignore_errors=True)
    return None


def evaluations_after(folder, epoch):
    """What evaluations of later epochs have left: lines of log.txt, and the weight files with their times."""
    lines = [line for line in (folder / "log.txt").read_text().splitlines()[1:] if int(line.split()[0]) > epoch]
    files = {path.name: path.stat().st_mtime_ns for path in folder.glob("SASRec.epoch=*.pth")
             if int(path.name.split(".")[1].removeprefix("epoch=")) > epoch}
    return lines, files


# Steps that the zombie has to be ahead of the group that takes its place: more than that group is let do.
ZOMBIES_LEAD = 500
STEPS_PER_EPOCH = 5


@pytest.mark.long
def test_a_zombie_node_0_wastes_compute_and_never_a_checkpoint(run, lockstep, hosts, agents, dataset, tmp_path):
    hosts.name("job-0.job", 0)
    folder = tmp_path / "run"
    # 25 steps to the next evaluation, 20 to the next checkpoint.
    flags = ["--heartbeat_timeout_seconds", "5", "--rejoin_timeout_seconds", "1", "--checkpoint_every", "20",
             "--eval_every", "5"]
    zombie = start(agents, lockstep, hosts, 0, 0, dataset, folder, tmp_path, *flags, nodes="1:2", steps=ENDLESS)
    other = start(agents, lockstep, hosts, 1, 1, dataset, folder, tmp_path, *flags, nodes="1:2", steps=ENDLESS)
    zombie.wait_for_status(lambda s: max_step(s) > 50 and s["worldSize"] == 2, "2 ranks at work")
    hosts.cut(0)
    cut_at = max(losses(folder))
    # It goes on alone behind the partition and writes checkpoints to the volume that both can reach.
    zombie.wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 1, "the zombie alone")
    aside = []
    zombie.wait_for(lambda: aside.append(put_aside(folder, tmp_path / "aside", cut_at + ZOMBIES_LEAD)) or aside[-1],
                    "checkpoint of the zombie alone")
    hosts.name("job-0.job", 3)
    new = start(agents, lockstep, hosts, 3, 0, dataset, folder, tmp_path, *flags, nodes="1:2", steps=ENDLESS, attempt=1)
    joined = new.wait_for_status(lambda s: s["phase"] == "Running" and s["worldSize"] == 2, "a new node 0 with node 1")
    # From the new group's first checkpoint on the zombie publishes nothing, and it says so.
    zombie.wait_for(lambda: "newer than this one's" in zombie.output(), "refusal of the zombie's checkpoint")
    assert any(attempt_of(state) == 1 for state in states(folder).values())
    published = zombies_newest(folder)
    # Nor does it leave anything of an evaluation: it is far beyond the epochs of the new group.
    far = (cut_at + ZOMBIES_LEAD) // STEPS_PER_EPOCH
    left = evaluations_after(folder, far)
    seen = max_step(zombie.wait_for_status(lambda s: True, "the zombie's status"))
    zombie.wait_for_status(lambda s: max_step(s) > seen + 3 * 5 * STEPS_PER_EPOCH, "three evaluations of the zombie")
    status = new.wait_for_status(lambda s: max_step(s) > max_step(joined) + 100, "steps of the new group")
    assert zombies_newest(folder) <= published
    assert evaluations_after(folder, far) == left
    stop(new, other)
    zombie.process.send_signal(signal.SIGKILL)
    zombie.process.wait()
    assert_state_was_kept([zombie, new, other], status)

    # The new group trained as if nothing had happened.
    newest = max(states(folder).items(), key=lambda item: (item[1]["generation"], item[1]["step"]))[1]
    name = f"step-{newest['step']:08d}"
    assert attempt_of(newest) == 1 and newest["step"] == max(losses(folder))
    assert losses(folder) == reference(run, lockstep, dataset, tmp_path / "reference", 2, newest["step"], "--eval_every", "5")
    assert equal_weights(weights(folder, name), weights(tmp_path / "reference"))

    # What the zombie wrote is at a higher step than all that the new group did: a third start passes it by.
    step = int(aside[-1].name.split("-")[1])
    assert step > newest["step"]
    shutil.rmtree(folder / aside[-1].name, ignore_errors=True)
    shutil.copytree(aside[-1], folder / aside[-1].name)
    assert attempt_of(states(folder)[folder / checkpoints(folder)[-1]]) == 0
    third = start(agents, lockstep, hosts, 1, 0, dataset, folder, tmp_path, *flags, nodes="1", steps=ENDLESS, attempt=2,
                  coordinator="127.0.0.1:29400")
    third.wait_for(lambda: "resumed from" in third.output(), "the line that says where the state is from")
    assert f"resumed from {folder}/{name}" in third.output(), third.output()
