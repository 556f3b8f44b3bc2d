"""What the package `lockstep` refuses, in words that say what to do. Three ranks."""
import re
import subprocess
import sys

import pytest

from own_runs import OWN, PACKAGE, launch  # noqa: F401
from programs import clean_environment, python_with_torch, text

NOT_BEGUN = {"not begun": "lockstep.init_process_group has not been called yet: call it first"}
# Of one run each, because only some of the ranks are at fault.
OTHER_MODELS = {
    "other shape": "parameter 0 is weight float32 [4, 9] in this rank and weight float32 [4, 8] in rank 0: build the same model in all ranks",
    "other dtype": "parameter 0 is weight bfloat16 [4, 8] in this rank and weight float32 [4, 8] in rank 0: build the same model in all ranks",
    "other order": "parameter 0 is two.weight float32 [4, 4] in this rank and one.weight float32 [4, 4] in rank 0: build the same model",
    "other number": "parameter 1 is none in this rank and bias float32 [4] in rank 0: build the same model in all ranks",
    "other buckets": "bucket_cap_mb is 1.0 in this rank and 25.0 in rank 0: build the same model in all ranks",
    "other buffers": "broadcast_buffers is False in this rank and True in rank 0: build the same model in all ranks",
    "other frozen part": "frozen parameter 0 is 1.weight float32 [4, 4] in this rank and 1.weight float32 [5, 4] in rank 0: build the same model in",
    "other buffer": "buffer 0 is table float32 [3] in this rank and table float32 [2] in rank 0: build the same model in all ranks",
    "other number of models": "this rank has wrapped more than 1 models in lockstep.DistributedDataParallel before lockstep.restore, and rank 0 has "
                              "wrapped 1: wrap the same models in all ranks",
}
REENTRANT = "came from a backward inside another one (torch.utils.checkpoint with use_reentrant=True): use use_reentrant=False"
CHANGED = "was added to the model, or replaced, since it was wrapped: change it before lockstep.DistributedDataParallel"
BEFORE_RESTORE = {
    "begun twice": "lockstep.init_process_group is called twice: call it once",
    "new group": "torch.distributed.new_group cannot be recovered when a rank is lost: use the default group",
    "all to all": "torch.distributed.all_to_all_single cannot be recovered when a rank is lost: use all_reduce",
    "wrapped twice": "0.weight of Sequential is part of a model that is wrapped already: wrap the whole model once",
    "sparse": "DistributedDataParallel got an embedding with sparse=True: its gradient cannot be recovered when a rank is lost, leave sparse out",
    "batches of all ranks": "DistributedDataParallel got norm, which is a SyncBatchNorm: what it sends in forward and backward cannot be recovered",
    "no shape yet": "DistributedDataParallel got a module whose parameter weight has no shape yet: call the module once before",
    "devices": "DistributedDataParallel got device_ids=[0] and output_device=None, for a module on cpu: give one GPU to a module on that GPU",
    "another group": "DistributedDataParallel got a process_group: gradients are reduced over all ranks here, leave it out",
    "no parameter": "DistributedDataParallel got a module without a parameter that requires a gradient: it needs no wrapper",
    "subclass of torch's": "OwnWrapper is a subclass of torch's DistributedDataParallel, which does not recover: derive it from "
                           "lockstep.DistributedDataParallel",
    "own buffers too large": "broadcast_buffers=False: each rank keeps its own buffers for the process that takes its place, at most ",
    "not restored": "a backward before lockstep.restore: call that first, when all models are wrapped",
    "bad collective at the start": "a collective fails although no rank is lost: ",
    "model not given": "Linear is wrapped in lockstep.DistributedDataParallel, and lockstep.restore did not get it: give it all models",
}
OF_RESTORE = {
    "no state": "lockstep.restore got data=list, which has no state_dict and load_state_dict",
    "unreadable state": "the state of odd cannot be handed to another rank",
}
AFTER_RESTORE = {
    "restored twice": "lockstep.restore is called twice: call it once, with all objects",
    "wrapped late": "Linear is wrapped in lockstep.DistributedDataParallel after lockstep.restore: wrap all models before",
    "no loop": "an optimizer steps outside of the loop: write `for step in run.steps(total):`",
    "optimizer not given": "lockstep.restore did not get the SGD that steps parameters of a wrapped model: give it all optimizers",
    "schedule not given": "the learning rate of the SGD follows a schedule of torch.optim.lr_scheduler that lockstep.restore did not get, and",
    "step in backward": "an optimizer steps inside backward, before the gradients are reduced: call step() when backward() has returned",
    "reentrant": REENTRANT,
    "all reentrant": REENTRANT,
    "parameter added": f"0.scale {CHANGED}",
    "part added": f"2.weight {CHANGED}",
    "parameter replaced": f"0.weight {CHANGED}",
    "unfrozen": "1.bias requires a gradient since the model was wrapped: wrap it when all that is ever trained does",
    "batches alone": "run.batches is called outside of run.epochs: write `for batch in run.batches(loader):` inside `for epoch in",
    "batches twice": "run.batches is called again in epoch 0: call it once in each epoch, and go through other data without it",
    "batch size": "the loader has batch_size=4, and its DistributedSampler 2: give both the same",
    "forked child": "this process was forked by a rank, and is none itself: train and communicate in the rank's own process",
    "bad collective": "a collective fails although no rank is lost: ",
}


OTHERS = [pytest.param({what: words}, marks=[] if what in ("other buckets", "other number of models") else pytest.mark.long)
          for what, words in OTHER_MODELS.items()]


@pytest.mark.parametrize("mistakes", [NOT_BEGUN, *OTHERS, BEFORE_RESTORE, OF_RESTORE, AFTER_RESTORE],
                         ids=lambda mistakes: next(iter(mistakes)))
def test_mistakes_are_refused_by_name(launch, mistakes):  # noqa: F811
    done = launch(OWN / "mistakes.py", *mistakes, max_restarts=0)
    for what, words in mistakes.items():
        assert re.search(f"{re.escape(what)}: .*{re.escape(words)}", text(done)), text(done)


TWO_PROGRAMS = """
import torch, lockstep
lockstep.init_process_group()
model = lockstep.DistributedDataParallel(torch.nn.Linear(1, 1))
run = lockstep.restore(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
for step in run.steps(1):
    pass
"""


def test_a_script_may_go_on_for_long_after_its_program(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text(TWO_PROGRAMS)
    (tmp_path / "both.sh").write_text(f"{sys.executable} train.py && sleep 4 && echo all is done\n")
    done = launch("--heartbeat_timeout_seconds", 2, "--stall_timeout_seconds", 2, "--", "bash", tmp_path / "both.sh", ranks=2, max_restarts=0)
    assert done.returncode == 0 and text(done).count("all is done") == 2, text(done)


def test_a_backend_that_does_not_recover_is_refused(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text("import lockstep\nlockstep.init_process_group(backend='nccl')\n")
    done = launch(tmp_path / "train.py", ranks=1, max_restarts=0)
    assert done.returncode == 1 and "backend='nccl': only gloo recovers, so far: leave backend out" in text(done), text(done)


def test_a_second_program_of_a_rank_is_refused(launch, tmp_path):  # noqa: F811
    (tmp_path / "train.py").write_text(TWO_PROGRAMS)
    (tmp_path / "both.sh").write_text(f"{sys.executable} train.py && echo first has ended && {sys.executable} train.py\n")
    done = launch("--", "bash", tmp_path / "both.sh", ranks=2, max_restarts=0)
    assert done.returncode != 0 and "first has ended" in text(done), text(done)
    assert "a second program of this rank has called lockstep.init_process_group" in text(done), text(done)


RARELY_COMMITTED = """
import torch, lockstep
lockstep.init_process_group()
net, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, other)]
run = lockstep.restore(model=lockstep.DistributedDataParallel(net), first=optimizers[0], second=optimizers[1])
for step in run.steps({total}):
    {body}
"""


@pytest.mark.parametrize(("total", "body", "words"), [
    (210, "optimizers[0].step()", "in 100 iterations second has not stepped, so nothing is committed: a rank that is lost makes them all again"),
    (1, "[optimizer.step() for _ in range(210) for optimizer in optimizers]",
     "one iteration of the loop has 200 optimizer steps, and a rank that is lost makes them all again: let run.steps count the optimizer's steps")])
def test_a_loop_that_rarely_commits_is_said_once(total, body, words):
    done = subprocess.run([sys.executable, "-c", RARELY_COMMITTED.format(total=total, body=body)], capture_output=True, text=True,
                          env=clean_environment(PYTHONPATH=str(PACKAGE)))
    assert done.returncode == 0 and done.stderr.count(f"lockstep: {words}") == 1, text(done)


DONE = {"all_reduce", "reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_into_tensor", "all_gather_single",
        "all_gather_object", "barrier"}


@pytest.mark.parametrize("version", [None, *(pytest.param(version, marks=pytest.mark.long) for version in ("2.4.0", "2.15.0"))])
def test_each_collective_of_torch_is_done_or_refused_by_name(launch, version):  # noqa: F811
    python = ["--", python_with_torch(version)] if version else []
    done = launch(*python, OWN / "collectives.py", ranks=2, max_restarts=0)
    assert done.returncode == 0, text(done)
    found = re.findall(r"^(\w+): (done|refused: .*)$", done.stdout, re.M)
    assert len(found) >= 20, text(done)
    for name, words in found:
        if name in DONE:
            assert words == "done", name
        else:
            assert re.match("refused: (torch.distributed.(all|gather|scatter|reduce|send|recv)|monitored_barrier)", words), (name, words)
