"""What works in a Python that was started for this program works in one that was forked for it."""
import atexit
import faulthandler
import functools
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Thing:
    def __init__(self):
        self.weight = torch.arange(3.0)


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, at):
        return torch.tensor(float(at))


def square(x):
    return x * x


def add_one(tensor):
    tensor += 1


def check_pickle():
    assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
    with tempfile.TemporaryFile() as file:
        torch.save(Thing(), file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)) is Thing


def check_threads():
    torch.set_num_threads(2)
    a = torch.ones(256, 256)
    assert float((a @ a).sum()) == 256.0**3
    found = []

    def backward():
        x = torch.ones(4, requires_grad=True)
        (x * 3).sum().backward()
        found.append(float(x.grad.sum()))
    threads = [threading.Thread(target=backward) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [12.0] * 4, found


def check_gloo():
    dist.init_process_group("gloo")
    x = torch.ones(5) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    assert float(x[0]) == dist.get_world_size() * (dist.get_world_size() + 1) / 2
    dist.destroy_process_group()


def check_processes():
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
        assert float(sum(batch.sum() for batch in loader)) == 28.0, method
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
    shared = torch.zeros(2).share_memory_()
    process = context.Process(target=add_one, args=(shared,))
    process.start()
    process.join()
    assert process.exitcode == 0 and shared.tolist() == [1.0, 1.0]


def check_tokenizers():
    from tokenizers import Tokenizer, models, pre_tokenizers
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert [e.ids for e in tokenizer.encode_batch(["a b"] * 8)] == [[0, 1]] * 8


def check_compile():
    compiled = torch.compile(lambda x: torch.sin(x) + 1)
    assert torch.allclose(compiled(torch.ones(8)), torch.sin(torch.ones(8)) + 1)


def main():
    assert sys.argv[1:2] == ["a b"], sys.argv
    assert __name__ == "__main__" and sys.modules["__main__"].Thing is Thing
    assert os.path.basename(__file__) == "everything.py" and sys.path[0] == os.path.dirname(os.path.realpath(__file__))
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ and "OPENBLAS_NUM_THREADS" not in os.environ
    assert "LOCKSTEP_BEAT_FD" not in os.environ and "LOCKSTEP_TOKEN" not in os.environ
    assert not torch.cuda._is_in_bad_fork() and not torch.cuda.is_initialized()
    import numpy
    assert numpy.linalg.norm(numpy.ones((64, 64)) @ numpy.ones((64, 64))) == 64.0 * 64.0
    with open(f"random-{os.environ['RANK']}", "w", encoding="utf-8") as file:
        file.write(str(numpy.random.rand()))
    check_pickle()
    check_threads()
    check_gloo()
    check_processes()
    check_tokenizers()
    if "compile" in sys.argv:
        check_compile()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        assert b"everything.py" in file.read()
    atexit.register(functools.partial(print, "at its end", flush=True))
    print("everything works", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
