"""The parts of the package `lockstep` that decide and compute, without ranks."""
import collections
import contextlib
import datetime
import errno
import inspect
import random
import re
import subprocess
import sys
from unittest import mock

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from own_runs import PACKAGE
from programs import clean_environment, text
from test_launch_python import PYTHONS

sys.path.insert(0, str(PACKAGE))
from lockstep import (DistributedSampler, LockstepError, _attributes, _buckets, _checkpoint, _data, _ddp, _library, _random, _run, _state, _tensors,  # noqa: E402
                      _tracked)
from lockstep._data import batches_from  # noqa: E402
from lockstep._default_group import DefaultGroup  # noqa: E402
from lockstep._gloo import Abandoned, make_group  # noqa: E402
from lockstep._handover import Channel, compare_digests, digests_of  # noqa: E402
from lockstep._left import is_by_break  # noqa: E402
from lockstep._memory import RankMemory  # noqa: E402
from lockstep._notes import Notes  # noqa: E402
from lockstep._results import Results, StartLog  # noqa: E402
from lockstep._wrapped import Models  # noqa: E402

# ---- groups ----

def test_an_address_of_another_machine_is_named():
    with pytest.raises(LockstepError, match=r"gloo cannot listen on the address 192\.0\.2\.1 of this node: .+; set GLOO_SOCKET_IFNAME to an interface"):
        make_group("gradients/0", torch.distributed.HashStore(), 0, 1, datetime.timedelta(seconds=1), "192.0.2.1")


# ---- buckets ----

def test_buckets_are_in_reverse_order_and_the_first_is_small():
    params = [torch.zeros(300_000), torch.zeros(300_000), torch.zeros(10), torch.zeros(300_000)]
    assert [i for bucket in _buckets.layout(params, 25 << 20) for i in bucket.params] == [3, 2, 1, 0]
    assert len(_buckets.layout(params, 1000)) == 3


def test_a_bucket_has_one_dtype():
    params = [torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4)]
    assert [(bucket.params, bucket.dtype) for bucket in _buckets.layout(params, 1 << 20)] == [
        ((2,), torch.float32), ((1,), torch.bfloat16), ((0,), torch.float32)]


def test_the_first_difference_of_two_models_is_named():
    def described(*sizes, cap=25):
        return _buckets.describe({"parameter": [(f"{number}.weight", torch.zeros(size)) for number, size in enumerate(sizes)]}, {"cap": cap})
    ours = described(3, 4)
    assert _buckets.difference(ours, described(3, 5), 0) == "parameter 1 is 1.weight float32 [4] in this rank and 1.weight float32 [5] in rank 0"
    assert _buckets.difference(ours, described(3), 2) == "parameter 1 is 1.weight float32 [4] in this rank and none in rank 2"
    assert _buckets.difference(ours, described(3, 4, 5), 2) == "parameter 2 is none in this rank and 2.weight float32 [5] in rank 2"
    assert _buckets.difference(ours, described(3, 4, cap=1), 1) == "cap is 25 in this rank and 1 in rank 1"
    assert _buckets.difference(ours, ours, 1) == ""


# ---- loops ----

def ends_of_loops(way):
    """What a generator thinks of the ends of loops that go through it by `way`: by break, by return, by two exceptions, and where it is kept."""
    thoughts = []

    def items():
        def numbers():
            try:
                yield from range(10)
            except GeneratorExit:
                thoughts.append(is_by_break(sys._getframe().f_back))
                raise
        return way(numbers())
    for _ in items():
        with contextlib.suppress(KeyError):
            break

    def by_return():
        for item in items():
            try:
                return item
            finally:
                pass
        return None
    by_return()
    with contextlib.suppress(ValueError):
        for _ in items():
            int("x")
    with contextlib.suppress(SystemExit):
        for _ in items():
            try:
                sys.exit()
            finally:
                pass

    def keep():
        kept = items()
        for _ in kept:
            break
    keep()
    return thoughts


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
@pytest.mark.parametrize("way", ["iter", "enumerate", "lambda items: (item for item in items)", "lambda items: (item for item in enumerate(items))"],
                         ids=["alone", "enumerate", "a generator", "several"])
def test_a_loop_that_break_or_return_has_ended_is_known(python, way):
    program = f"import contextlib, sys\nfrom lockstep._left import is_by_break\n{inspect.getsource(ends_of_loops)}\nprint(ends_of_loops({way}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, env=clean_environment(PYTHONPATH=str(PACKAGE)))
    assert done.stdout == "[True, True, False, False, False]\n", text(done)


# ---- batches ----

class Marked(torch.utils.data.Dataset):
    """Of each item its number and one that is drawn. `reads`: how often each was read, in whichever process."""

    def __init__(self):
        self.reads = torch.zeros(20, dtype=torch.int64).share_memory_()

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.reads[index] += 1
        return index, torch.rand(()).item()


@pytest.mark.parametrize(("workers", "are_seeded"), [(0, False), (0, True), (2, False)])
def test_the_rest_of_an_epoch_is_the_same_and_no_batch_before_it_is_read(workers, are_seeded):
    def read(first):
        data = Marked()
        torch.manual_seed(7)
        batches = batches_from(DataLoader(data, batch_size=3, shuffle=True, num_workers=workers), first, are_seeded)
        return [(numbers.tolist(), drawn.tolist()) for numbers, drawn in batches], data.reads.tolist()
    (whole, whole_reads), (rest, reads) = read(0), read(4)
    assert len(whole) == 7 and whole_reads == [1] * 20
    assert [numbers for numbers, _ in rest] == [numbers for numbers, _ in whole[4:]]
    assert (rest == whole[4:]) == (workers > 0 or are_seeded), "else a batch draws where the one before has ended"
    assert reads == [sum(number in numbers for numbers, _ in rest) for number in range(20)]


class Stream(torch.utils.data.IterableDataset):
    def __init__(self):
        self.read = []

    def __iter__(self):
        for item in range(12):
            self.read.append(item)
            yield item


@pytest.mark.parametrize("loader_of", [lambda data: data, lambda data: DataLoader(data, batch_size=2),
                                       lambda data: DataLoader(data, batch_size=None)], ids=["no loader", "batches", "items"])
def test_what_cannot_be_indexed_is_read_again_which_is_said(capsys, loader_of):
    def read(first):
        data = Stream()
        return [torch.as_tensor(batch).tolist() for batch in batches_from(loader_of(data), first)], data.read
    whole, _ = read(0)
    assert capsys.readouterr().err == ""
    assert read(5) == (whole[5:], list(range(12)))
    assert capsys.readouterr().err == ("lockstep: reading 5 batches again to go on where the epoch was, because the loader's data cannot be "
                                       "indexed\n")


def test_a_loop_over_epochs_that_are_made_already_says_so(capsys):
    session = mock.Mock(rank=0, position=12, begin=lambda objects, can_resize: objects[_checkpoint.LOOP].load_state_dict({"epoch": 3}))
    assert list(_run.Run(session, {}).epochs(3)) == []
    assert capsys.readouterr().err == "lockstep: all 3 epochs are made already\n"


# ---- state ----

def test_nested_state_comes_apart_and_together():
    value = {"a": [torch.arange(3), (1, torch.tensor(2.5))], 7: "text"}
    tensors = []
    rest = _tensors.from_bytes(_tensors.to_bytes(_tensors.extract_tensors(value, tensors), "x"))
    again = _tensors.insert_tensors(rest, [tensor.clone() for tensor in tensors])
    assert again["a"][0].equal(value["a"][0]) and again["a"][1][1].equal(value["a"][1][1]) and again[7] == "text"


def test_state_that_another_rank_could_not_read_is_refused_by_name():
    class Own:
        pass
    with pytest.raises(LockstepError, match="the state of schedule cannot be handed to another rank"):
        _tensors.to_bytes({"x": random.Random()}, "schedule")


def test_tensors_travel_in_pieces_of_any_size(monkeypatch):
    monkeypatch.setattr(_tensors, "PIECE_BYTES", 10)
    tensors = [torch.arange(7), torch.tensor(1.5, dtype=torch.bfloat16), torch.empty(0), torch.tensor([True, False]), torch.rand(3, 2)]
    filled = _tensors.empty_as(_tensors.description_of(tensors))
    reader = _tensors.PieceReader(filled)
    for piece in _tensors.pieces_of(tensors):
        assert piece.numel() == reader.next_size()
        reader.take(piece.clone())
    assert reader.next_size() == 0
    assert all(a.equal(b) for a, b in zip(tensors, filled))


def test_an_optimizer_s_state_comes_back_with_its_own_dtype():
    model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    state["exp_avg"] = torch.full_like(state["exp_avg"], 1 / 3, dtype=torch.float32)  # more bits than the parameter's
    tracked = _tracked.track("optimizer", optimizer, _tracked.Undo())
    tracked.commit()
    other_model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    other = torch.optim.AdamW(other_model.parameters())
    _tracked.track("optimizer", other, _tracked.Undo()).load(tracked.state())
    assert other.state[other_model.weight]["exp_avg"].equal(state["exp_avg"])


def test_what_a_forward_has_changed_is_handed_over_as_it_was_at_the_commit():
    model = torch.nn.BatchNorm1d(3)
    tracked = _tracked.track("model", model, _tracked.Undo())
    tracked.commit()
    before = model.running_mean.clone()
    model(torch.rand(4, 3))
    assert tracked.state()["buffers"]["running_mean"].equal(before) and not model.running_mean.equal(before)


def test_parameters_that_no_optimizer_steps_are_copied_once_they_have_been_seen_to_change():
    model = torch.nn.Linear(2, 2)
    tracked = _tracked.track("average", model, _tracked.Undo())
    tracked.commit()
    tracked.load(tracked.state())  # as in a new rank: that is no change, and a large frozen model is not copied in each step
    tracked.commit()
    assert tracked.is_whole() and tracked.state()["parameters"]["weight"] is model.weight

    def change():
        with torch.no_grad():
            model.weight.add_(1)
    change()
    assert not tracked.is_whole(), "what it was is gone"
    tracked.commit()
    before = model.weight.detach().clone()
    change()
    assert tracked.is_whole()
    assert torch.equal(tracked.state()["parameters"]["weight"], before)
    assert tracked.state()["parameters"]["bias"] is model.bias


def test_an_undo_copy_is_made_until_it_is_known_that_none_is_needed():
    param = torch.nn.Parameter(torch.ones(2))
    optimizer, undo = torch.optim.SGD([param], lr=1.0), _tracked.Undo()
    tracked = _tracked.track("optimizer", optimizer, undo)
    tracked.commit()
    param.grad = torch.ones(2)
    optimizer.step()
    assert undo.at_commit(param).equal(torch.ones(2)) and tracked.is_whole()
    undo.clear()
    tracked.commit()
    optimizer.step()
    assert not tracked.is_whole()
    tracked.note_collective()
    tracked.commit()
    optimizer.step()
    assert tracked.is_whole()


@pytest.mark.parametrize(("kind", "is_needed"), [(torch.optim.Adam, False), (torch.optim.LBFGS, True)])
def test_a_collective_in_an_optimizers_closure_comes_before_its_step_unless_it_is_called_again(kind, is_needed):
    param = torch.nn.Parameter(torch.ones(2))
    optimizer, undo = kind([param], lr=0.1), _tracked.Undo()
    tracked = _tracked.track("optimizer", optimizer, undo)

    def closure():
        optimizer.zero_grad()
        (loss := (param ** 2).sum()).backward()
        tracked.note_collective()  # the reduction
        assert tracked.is_whole()
        return loss
    tracked.commit()
    optimizer.step(closure)
    before = undo.at_commit(param).clone()
    undo.clear()
    tracked.commit()
    optimizer.step(closure)
    assert undo.has(param) == is_needed
    assert before.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("change", [lambda param: param.data.add_(1), lambda param: setattr(param, "data", param + 1)], ids=["in place", "in its place"])
def test_weights_that_are_swapped_without_a_word_are_noticed_and_may_be_undone(change):
    model, undo = torch.nn.Linear(3, 2, bias=False).requires_grad_(), _tracked.Undo()
    model.odd = torch.nn.Parameter(torch.full((4, 3), torch.nan).t())  # not contiguous, and unlike itself
    tracked = _tracked.track("model", model, undo)
    tracked.leave_to_optimizers(set(model.parameters()))
    tracked.commit()
    assert tracked.is_whole()
    change(model.weight)
    assert not tracked.is_whole()
    tracked.commit()
    assert tracked.is_whole()
    at_commit = model.weight.detach().clone()
    tracked.save_undo()
    change(model.weight)
    assert tracked.is_whole() and tracked.state()["parameters"]["weight"].equal(at_commit)


def test_digests_name_each_tensor_and_see_its_dtype():
    state = {"optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "groups": [{"lr": 0.1, "scale": torch.tensor(2.0)}]}}
    digests = digests_of(state)
    assert list(digests) == ["optimizer.state.0.exp_avg", "optimizer.groups.0.scale"]
    compare_digests(digests, dict(digests), 1)
    state["optimizer"]["state"][0]["exp_avg"] = torch.arange(3.0).double()
    with pytest.raises(LockstepError, match=r"optimizer.state.0.exp_avg is float64 \[3\] .* after the state of rank 1 was loaded, and is float32"):
        compare_digests(digests_of(state), digests, 1)
    del state["optimizer"]["groups"][0]["scale"]
    with pytest.raises(LockstepError, match="optimizer.groups.0.scale is not there"):
        compare_digests(digests_of({"optimizer": {"state": {0: {"exp_avg": torch.arange(3.0)}}, "groups": []}}), digests, 1)


class Pipe:
    """In the place of a group: what rank 0 sends, rank 1 receives later."""

    def __init__(self):
        self.sent = []

    def broadcast(self, tensors, options):
        if options.rootRank == 0:
            self.sent.append(tensors[0].clone())
        else:
            tensors[0].copy_(self.sent.pop(0))


@pytest.fixture
def state_of(monkeypatch):
    """state_of(model=…) is the state of a rank that has given these to lockstep.restore, and keeps their buffers for itself."""
    monkeypatch.setattr(_state, "register_optimizer_step_pre_hook", lambda hook: None)  # it would stay

    def make(**objects):
        models, notes = Models(), Notes(RankMemory(bytearray(1 << 20)))
        models.keep_buffers += objects.values()
        state = _state.State(models, notes)
        state.begin(objects)
        return state
    return make


def hand_over(source, target, position=0):
    """To a new rank 2, whose predecessor has left nothing."""
    pipe = Pipe()
    source.send(Channel(pipe, 0, lambda work: None), position, 9)
    assert target.receive(Channel(pipe, 1, lambda work: None), 0, 2) == (position, 9)


def test_other_objects_than_in_the_rank_that_hands_over_are_named(state_of):
    with pytest.raises(LockstepError, match="lockstep.restore got net, second in this rank and model in rank 0: give it the same objects"):
        hand_over(state_of(model=torch.nn.Linear(2, 2)), state_of(net=torch.nn.Linear(2, 2), second=torch.nn.Linear(2, 2)))


@pytest.mark.parametrize("position", [0, 5])
def test_buffers_that_are_lost_with_a_node_are_said(state_of, capsys, position):
    norms = [torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)]
    for norm in norms:
        norm(torch.rand(4, 3))
    theirs, own = (norm.running_mean.clone() for norm in norms)
    hand_over(*(state_of(model=norm) for norm in norms), position)
    assert norms[1].running_mean.equal(theirs if position > 0 else own)
    words = "lockstep: the buffers of rank 2 are lost with its node: it goes on with those of rank 0\n"
    assert capsys.readouterr().err == (words if position > 0 else "")


def test_results_are_kept_until_their_memory_is_used_again():
    results = Results()
    for number in range(3):
        results.add("sum", [torch.tensor(number)])
    assert (results.kept_from(), results.complete) == (0, 3) and results.memory_of_old("sum") is None
    results.commit()
    assert results.memory_of_old("other") is None and results.memory_of_old("sum")[0] == 0
    assert results.kept_from() == 1 and [result.tensors[0].item() for result in results.kept(range(1, 3))] == [1, 2]


def test_a_replay_is_that_of_the_same_collective():
    results = Results()
    results.add("sum", [torch.tensor(1)])
    kept = dict(enumerate(results.kept([0])))
    other = Results()
    other.set_replays(dict(kept))
    assert other.has_replay()
    with pytest.raises(LockstepError, match='collective 0 of the run is "barrier" in this rank, and was "sum" in others'):
        other.replay("barrier")
    other.set_replays(dict(kept))
    assert other.replay("sum")[0] == 1 and not other.has_replay() and other.complete == 1


def test_a_large_result_of_the_start_is_refused_when_it_is_asked_for():
    log = StartLog()
    log.add("small", [torch.zeros(4)])
    log.add("large", [torch.zeros(1 << 20)])
    log = StartLog.from_bytes(log.to_bytes())
    assert log.result(0, "small")[0].shape == (4,)
    with pytest.raises(LockstepError, match="large before lockstep.restore: .*make it after lockstep.restore"):
        log.result(1, "large")


def test_another_collective_of_the_start_than_in_the_others_is_named():
    log = StartLog()
    log.add("barrier()", [])
    assert log.result(0, "barrier()") == []
    for number, said in enumerate(["barrier()", "none"]):
        with pytest.raises(LockstepError, match=f"collective {number} of the program's start is sum in this rank, which was started again, and was "
                                                f"{re.escape(said)} in the others: make the same ones in all ranks before lockstep.restore"):
            log.result(number, "sum")


def test_works_that_end_are_freed():
    class Work:
        is_over = False

        def is_completed(self):
            return self.is_over
    abandoned, works = Abandoned(), [Work(), Work()]
    for work in works:
        abandoned.add(work, [torch.zeros(4)], None)
    works[0].is_over = True
    assert abandoned.nbytes() == 32
    abandoned.free()
    assert abandoned.nbytes() == 16


def test_a_sampler_has_torchs_order():
    data = range(23)
    for epoch in range(2):
        ours, torchs = DistributedSampler(data, 3, 1, seed=4, batch_size=2), torch.utils.data.DistributedSampler(data, 3, 1, seed=4)
        ours.set_epoch(epoch), torchs.set_epoch(epoch)
        assert list(ours) == list(torchs)
    with pytest.raises(LockstepError, match="DistributedSampler got batch_size=0, expected 1 or more"):
        DistributedSampler(data, 3, 1, batch_size=0)


@pytest.mark.parametrize(("items", "batch_size", "ranks"), [(24, 4, 3), (25, 4, 3), (7, 2, 2), (5, 4, 1)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_of_all_ranks_is_the_same_however_many_divide_it(items, batch_size, ranks, drop_last):
    def parts(world, rank):
        return list(_data.divide(sampler(0).order(), batch_size, ranks, rank, world, drop_last))

    def sampler(rank):
        return _data.DistributedSampler(range(items), ranks, rank, seed=3, drop_last=drop_last)
    loaders = [torch.utils.data.DataLoader(range(items), batch_size, sampler=sampler(rank), drop_last=drop_last) for rank in range(ranks)]
    wanted = [sorted(torch.cat(batches).tolist()) for batches in zip(*loaders)]
    for rank, loader in enumerate(loaders):
        assert [indices for indices, _ in parts(ranks, rank)] == [batch.tolist() for batch in loader], "torch's, in torch's number of ranks"
    for world in (1, 2, 3, 4, 5, 13):
        by_rank = [parts(world, rank) for rank in range(world)]
        weights = [[1 / world if weight is None else weight for _, weight in of_rank] for of_rank in by_rank]
        assert all(indices for of_rank in by_rank for indices, _ in of_rank), "a rank without an item could not take part"
        counted = [[indices if weight else [] for (indices, _), weight in zip(*both)] for both in zip(by_rank, weights)]
        assert [sorted(one for part in step for one in part) for step in zip(*counted)] == wanted
        assert all(sum(step) == pytest.approx(1) for step in zip(*weights))
    moved = sampler(0)
    moved.set_epoch(4)
    moved.move_to(5, 2)
    other = _data.DistributedSampler(range(items), 5, 2, seed=3, drop_last=drop_last)
    other.set_epoch(4)
    assert list(moved) == list(other)


def test_batches_that_cannot_be_divided_anew_are_named():
    session = mock.Mock(rank=0, world=3, position=0, begin=lambda objects, can_resize: None)
    run = _run.Run(session, {})
    assert [batch for batch, _ in run._batches_left([1, 2])] == [1, 2], "any loader, while the number of ranks stays"
    session.world = 2
    for loader in ([1, 2], DataLoader(range(4), sampler=torch.utils.data.DistributedSampler(range(4), 3, 0))):
        with pytest.raises(LockstepError, match="the group has 2 ranks, and the run began with 3: run.batches divides .* with 3 ranks$"):
            run._batches_left(loader)


def test_what_has_no_state_is_refused_by_name():
    with pytest.raises(LockstepError, match="got loader=list, which has no state_dict"):
        _tracked.track("loader", [], _tracked.Undo())


def test_a_module_on_two_kinds_of_devices_is_refused(monkeypatch):
    monkeypatch.setattr(_ddp, "exchange", lambda: None)
    with pytest.raises(LockstepError, match="DistributedDataParallel got a module with parameters on cpu and meta: move it to one of them"):
        _ddp.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta")))


def test_a_gathering_of_two_tensors_at_once_is_refused():
    with pytest.raises(LockstepError, match="all_gather got 2 tensors, expected one"):
        DefaultGroup(mock.Mock(rank=0, world=1)).allgather([[torch.ones(1)]] * 2, [torch.ones(1)] * 2)


def test_a_library_of_another_package_is_refused(monkeypatch):
    monkeypatch.setattr(_library, "ABI", 0)
    with pytest.raises(ImportError, match="/liblockstep.so has ABI 1, and this package needs 0: install the package again"):
        _library.Library()


# ---- random states and the memory that keeps them ----

def test_random_states_come_back():
    note = _random.capture()
    drawn = [torch.rand(2).tolist(), random.random(), numpy.random.rand(), torch.rand(1).tolist(), random.gauss(0, 1)]
    _random.apply(note)
    assert drawn == [torch.rand(2).tolist(), random.random(), numpy.random.rand(), torch.rand(1).tolist(), random.gauss(0, 1)]


def test_the_last_two_notes_of_each_kind_are_kept():
    memory = RankMemory(bytearray(4096))
    for number in range(5):
        assert memory.write("commit", number, 2, f"commit {number}".encode())
    memory.write("collective", 4, 2, b"collective 4")
    assert [memory.read("commit", number, 2) for number in range(5)] == [None, None, None, b"commit 3", b"commit 4"]
    assert memory.read("commit", 4, 1) is None and memory.read("collective", 4, 2) == b"collective 4"
    assert not memory.write("commit", 6, 2, bytes(5000))


def test_a_note_has_the_buffers_that_the_ranks_do_not_share():
    memory = RankMemory(bytearray(1 << 20))
    norm, notes = torch.nn.BatchNorm1d(3), Notes(memory)
    notes.keep_buffers([norm])
    notes.begin(lambda: b"random", 0, 0, 2)
    norm(torch.rand(4, 3))
    at_commit = norm.running_mean.clone()
    notes.leave("commit", 1, 2)
    norm(torch.rand(4, 3))
    note = Notes(memory).read(1, 1, 2)
    notes.put_buffers(note.buffers)
    assert note.random == b"random" and norm.running_mean.equal(at_commit) and norm.num_batches_tracked == 1
    assert Notes(memory).read(1, 1, 0) is None
    with pytest.raises(LockstepError, match="at most .* bytes, and Large has 4000000: leave broadcast_buffers=False out"):
        class Large(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("table", torch.zeros(1_000_000))
        notes.check_buffers([Large()])


def test_a_damaged_note_is_none():
    data = bytearray(4096)
    memory = RankMemory(data)
    memory.write("commit", 0, 0, b"x" * 100)
    data[60] ^= 1
    assert memory.read("commit", 0, 0) is None


# ---- checkpoints ----

@pytest.mark.parametrize("shape", [(2,), torch.Size([2])], ids=["JSON holds the rest", "JSON does not"])
def test_any_state_is_the_same_after_it_was_written_and_read(tmp_path, shape):
    state = {"model": {"parameters": {"a.b": torch.randn(2, 3).bfloat16(), "c": torch.randn(4, 6).t()[1:]}, "buffers": {"n": torch.tensor(7)}},
             "optimizer": {"state": {0: {"step": torch.empty(0, 3), "x": (1, None, -0.5)}, "a.b": {"c": torch.randn(5).to(torch.float8_e4m3fn)},
                                     "a": {"b.c": torch.tensor([True])}},
                           "groups": [{"lr": float("inf"), "name": "Größe", "big": 2**62, "shape": shape}],
                           "complex": torch.randn(3, dtype=torch.complex64)}}
    notes = {0: _checkpoint.Notes(b"ab", b""), 2: _checkpoint.Notes(b"", b"cde")}
    folder, written = _checkpoint.CheckpointFolder(str(tmp_path), state), []
    folder.start_write(state, lambda: notes, written.append, step=3, generation=7, lineage=7, world_size=3, keep=2)
    folder.wait()
    path, content = folder.newest(8)
    assert [path] == written and content.step == 3 and content.notes == notes
    found, wanted = [], []
    assert _tensors.extract_tensors(content.state, found) == _tensors.extract_tensors(state, wanted)
    assert _tensors.description_of(found) == _tensors.description_of(wanted)
    assert all(_tensors.as_bytes(one).equal(_tensors.as_bytes(other)) for one, other in zip(found, wanted, strict=True))


def test_a_folder_without_checkpoints_has_no_newest(tmp_path):
    assert _checkpoint.CheckpointFolder(str(tmp_path / "none"), {}).newest(8) is None


def test_what_differs_in_another_programs_checkpoint_is_named(tmp_path):
    def state(**models):
        return {name: {"parameters": {"weight": torch.ones(*shape)}, "buffers": {}, "extra": {}, "with_gradient": []}
                for name, shape in models.items()}
    folder = _checkpoint.CheckpointFolder(str(tmp_path), state(model=[3]))
    folder.start_write(state(model=[3]), dict, lambda path: None, step=3, generation=7, lineage=7, world_size=3, keep=2)
    folder.wait()
    for other, words in ((state(net=[3]), "lockstep.restore got model there, and net here"),
                         (state(model=[3, 1]), r"weight is F32 \[3\] there, and F32 \[3, 1\] here")):
        with pytest.raises(LockstepError, match=f"give another folder. {words}$"):
            _checkpoint.CheckpointFolder(str(tmp_path), other).newest(8)


def test_of_all_ranks_that_write_for_rank_0_one_does(tmp_path, capsys):
    """Each rank has the folder opened for itself. Later states are written, too."""
    state = {"model": {"parameters": {"a": torch.ones(3)}, "buffers": {}}}
    ranks, written = [_checkpoint.CheckpointFolder(str(tmp_path), state) for _ in range(8)], []
    for step in (3, 3, 2, 4):
        for folder in ranks:
            folder.start_write(state, dict, written.append, for_rank_0=True, step=step, generation=7, lineage=5, world_size=9, keep=3)
        for folder in ranks:
            folder.wait()
    assert written == [f"{tmp_path}/step-0000000{step}" for step in (3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000003", "step-00000004"]
    assert capsys.readouterr().err == ""


def test_no_rank_writes_for_rank_0_where_it_cannot_know_that_it_is_alone(tmp_path, monkeypatch, capsys):
    def refuse(file, what):
        raise OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(_checkpoint.fcntl, "flock", refuse)
    state, written = {"model": {"parameters": {"a": torch.ones(3)}, "buffers": {}}}, []
    folder = _checkpoint.CheckpointFolder(str(tmp_path), state)
    folder.start_write(state, dict, written.append, for_rank_0=True, step=3, generation=7, lineage=5, world_size=9, keep=3)
    folder.wait()
    assert not written and "no checkpoint of step 3" in (said := capsys.readouterr().err) and "No locks available" in said
    folder.start_write(state, dict, written.append, step=3, generation=7, lineage=5, world_size=9, keep=3)
    folder.wait()
    assert written == [f"{tmp_path}/step-00000003"]


class Counting(torch.utils.data.Sampler):
    """`rank`: an attribute that its class does not use, and that differs between the ranks."""

    def __init__(self, rank):
        self.data_source, self.rank, self.model = [rank], rank, torch.nn.Linear(1, 1)
        self.best = numpy.int64(0)
        self.count, self.figures, self.newest, self.loss = 0, {"train": collections.defaultdict(list)}, collections.deque(maxlen=2), torch.tensor(0.0)

    def __iter__(self):
        return iter(self.data_source)

    def count_on(self, number):
        self.count += number
        self.figures["train"]["loss"].append(number / 2)
        self.newest.append((number, {"unit": "s", "half": numpy.float32(number / 2)}))
        self.best = numpy.int64(number)
        self.loss = (self.loss + torch.ones(1, requires_grad=True) * number).squeeze()
        return self


def attributes_of(one, of_packages=False):
    made = _attributes.Attributes(lambda: {"one": one}, ("torch",), of_packages)
    made.begin()
    return made


def test_what_an_object_counts_is_put_into_another_one_with_its_own_containers():
    one, other = Counting(rank=1), Counting(rank=1).count_on(5)
    kept = _attributes.unpack(_attributes.pack(attributes_of(one.count_on(2).count_on(3)).values()))
    figures = other.figures["train"]
    attributes_of(other).put(kept)
    assert (other.count, other.best, other.figures["train"], other.loss.item()) == (5, 3, {"loss": [1.0, 1.5]}, 5.0)
    assert other.figures["train"] is figures and list(other.newest) == [(2, {"unit": "s", "half": 1.0}), (3, {"unit": "s", "half": 1.5})]
    other.figures["train"]["new"].append(1)  # still a defaultdict
    other.newest.append(4)
    assert len(other.newest) == 2 and not other.loss.requires_grad


def test_what_has_not_changed_since_the_beginning_is_each_ranks_own():
    one, other = Counting(rank=1), Counting(rank=2)
    kept = attributes_of(one)
    assert kept.changed() == {"one": {}}
    one.count_on(7)
    attributes_of(other).put(kept.changed())
    assert (other.rank, other.count) == (2, 7)


def test_what_a_framework_uses_is_left_to_who_knows_it(monkeypatch):
    one = Counting(rank=1)
    monkeypatch.setattr(torch.utils.data.Sampler, "read", lambda self: (self.data_source, self.count), raising=False)
    _attributes._names_of_packages.cache_clear()
    assert not {"data_source", "count"} & attributes_of(one).values()["one"].keys()
    assert "count" in attributes_of(one, of_packages=True).values()["one"] and "data_source" not in attributes_of(one, of_packages=True).values()["one"]
    _attributes._names_of_packages.cache_clear()


def test_an_attribute_with_many_items_is_not_kept_which_is_said_once(capsys):
    one = Counting(rank=0)
    kept = attributes_of(one)
    one.figures["train"]["loss"] = [0.5] * 1001
    for _ in range(2):
        assert "figures" not in kept.values()["one"]
    assert capsys.readouterr().err.count("Counting.figures has more than 1000 items, and is not kept") == 1


def test_an_attribute_with_something_else_in_it_is_not_kept():
    one = Counting(rank=0)
    one.figures["model"], one.newest, one.keys = one.model, [object()], {(1, 2): 3}
    assert not {"model", "figures", "newest", "keys"} & attributes_of(one).values()["one"].keys()
