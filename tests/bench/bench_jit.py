#!/usr/bin/env python3
"""A training step of JiT-B/4 at 64 x 64 pixels beside its twin in PyTorch, eager and compiled.

Every side does what a step takes: forward, the loss of the velocity, backward, AdamW, two averages of the weights. Ours is
`lockstep run` with one rank, its data and drawing of noise included; the twin's batches are drawn in advance, and its optimizer and
averages are torch's fused and foreach ones. The twin is tests/python/jit_twin.py, with torch's own RMS norm and attention in place
of those that are written out there; with --precision bf16 it runs under torch.autocast. The same threads on all sides, in turn;
medians of repetitions, with the least and the most.
Memory is the most that was resident in a process, with what its libraries take; on a GPU the most that its allocator reserved. What
batch 64 takes is measured with --batch 64; otherwise it follows from ours at the batch and at twice the batch, a straight line.
On a GPU give --steps 100 or more: our memory is read from the metrics of a run, which come once a second.
bench_jit.py [--device cpu|cuda] [--precision fp32|bf16] [--batch N] [--steps N] [--repetitions N] [--threads N] [--write]
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import jit_twin
from bench_sasrec import BIN, machine, publish, say
from measured import GpuMemory, run
from verdicts import Verdicts

TARGETS = {"cpu": {"eager": 1.05, "compiled": 1.0}, "cuda": {"compiled": 1.2}}
SIDE, PATCH, CLASSES = 64, 4, 10
SHAPE = (SIDE, PATCH, CLASSES, 12, 768, 12, 128, 4)
FLOPS = 3 * 50.1e9  # of an image, forward and backward
WARM = 3  # steps that are not counted
GUIDES_BATCH, GUIDES_GB = 64, 24  # of a device of the guide


class FastAttention(jit_twin.Attention):
    """Turned by real products, which compile, and torch's own attention."""

    def forward(self, x, angles):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin = (f(angles).repeat_interleave(2, -1) for f in (torch.cos, torch.sin))

        def turn(a):
            pairs = a.unflatten(-1, (-1, 2))
            return a * cos + torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2) * sin

        q, k = (turn(a).to(v.dtype) for a in (self.q_norm(q), self.k_norm(k)))
        heard = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(heard.transpose(1, 2).reshape(b, n, d))


class FastNorm(nn.RMSNorm):
    def __init__(self, width):
        super().__init__(width, eps=1e-6)


class FastNet(jit_twin.Net):
    """Its tables made once."""

    def __init__(self, *shape):
        super().__init__(*shape)
        self.tables = (super().positions(), super().angles())

    def positions(self):
        return self.tables[0]

    def angles(self):
        return self.tables[1]


def make_twin(device):
    written_out = jit_twin.Attention, jit_twin.RMSNorm
    jit_twin.Attention, jit_twin.RMSNorm = FastAttention, FastNorm
    try:
        torch.manual_seed(1)
        model = FastNet(*SHAPE)
    finally:
        jit_twin.Attention, jit_twin.RMSNorm = written_out
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
    model.tables = tuple(table.to(device) for table in model.tables)
    return model.to(device)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def their_steps(is_compiled, options):
    """(seconds of a step, MiB that the allocator of a GPU reserved at most)"""
    torch.set_num_threads(options.threads)
    device, is_bf16 = options.device, options.precision == "bf16"
    model = make_twin(device)
    parameters = list(model.parameters())
    averages = [[p.detach().clone() for p in parameters] for _ in range(2)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def loss_of(image, noise, t, classes):
        t4 = t.view(-1, 1, 1, 1)
        z = t4 * image + (1 - t4) * noise
        with torch.autocast(device, torch.bfloat16, enabled=is_bf16):
            predicted = model(z, t, classes)
        return ((predicted - image) / (1 - t4).clamp(min=0.05)).square().mean()

    loss_of = torch.compile(loss_of) if is_compiled else loss_of
    draw, shape = torch.Generator().manual_seed(2), (options.batch, 3, SIDE, SIDE)
    batch = [tensor.to(device) for tensor in (torch.rand(shape, generator=draw) * 2 - 1, torch.randn(shape, generator=draw),
                                              torch.rand(options.batch, generator=draw),
                                              torch.randint(CLASSES, (options.batch,), generator=draw))]
    seconds = []
    for _ in range(WARM + options.steps):
        began = time.perf_counter()
        loss_of(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for average, decay in zip(averages, (0.9999, 0.9996)):
                torch._foreach_lerp_(average, parameters, 1 - decay)
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARM:]), torch.cuda.max_memory_reserved() / 2**20 if device == "cuda" else 0.0


def our_steps(options, batch, steps):
    """(seconds of a step, MiB: the most until the last step, without the checkpoint that follows it; on a GPU the allocator's)"""
    with tempfile.TemporaryDirectory() as folder, GpuMemory(options.device) as gpu:
        metrics = pathlib.Path(folder, "run/metrics.jsonl")

        def losses():
            return [record for record in map(json.loads, metrics.read_text().rpartition("\n")[0].splitlines()) if "loss" in record]

        command = [BIN / "lockstep", "run", "jit", "--data_path", f"generated:200:{CLASSES}", "--train_dir", f"{folder}/run",
                   "--batch_size", batch, "--nproc", "1", "--threads", options.threads, "--device", options.device, "--precision",
                   options.precision, "--max_steps", WARM + steps, "--log_every", "1", "--eval_every", "0", "--sample_images", "0",
                   "--checkpoint_every", "0", "--status_port", gpu.port]
        child = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
        resident = 0.0
        while child.poll() is None:
            if not metrics.exists() or len(losses()) < WARM + steps:
                resident = max(resident, resident_at_most(child.pid))
            time.sleep(0.2)
        if child.returncode != 0:
            raise SystemExit(f"exit code {child.returncode} from: {' '.join(map(str, command))}")
        if options.device == "cuda" and not gpu.mib:
            raise SystemExit("the run ended before its memory was seen: give more --steps")
        times = [record["time"] for record in losses()]
    return statistics.median(b - a for a, b in zip(times[WARM - 1:], times[WARM:])), gpu.mib or resident


def resident_at_most(launcher):
    """MiB of its worker until now; 0 before there is one."""
    found = 0.0
    for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            continue
        found = max([found] + [int(kib) / 1024 for kib in re.findall(r"VmHWM:\s+(\d+) kB", status)])
    return found


def their_process(way, options):
    """A process of its own, so that no side inherits the other's threads or memory."""
    output, resident = run([sys.executable, __file__, "--side", way, "--device", options.device, "--precision", options.precision,
                            "--batch", options.batch, "--steps", options.steps, "--threads", options.threads])
    seconds, reserved = map(float, output.splitlines()[-1].split())
    return seconds, reserved or resident


def product_speed(options):
    """FLOP a second of the products that bound a step: [tokens of a batch, 768] x [768, 2 * 2048]."""
    torch.set_num_threads(options.threads)
    kind = {"device": options.device, "dtype": torch.bfloat16 if options.precision == "bf16" else torch.float32}
    a, b = torch.rand(options.batch * 288, 768, **kind), torch.rand(768, 4096, **kind)
    count = 100 if options.device == "cuda" else 1  # one is too short for the clock there

    def products():
        for _ in range(count):
            a @ b
        synchronize(options.device)

    best = min(timed(products) for _ in range(20)) / count
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / best


def timed(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of each side")
    parser.add_argument("--side", choices=("eager", "compiled"), help="prints the seconds of a step of this side alone")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    if options.write and (options.device, options.precision) != ("cpu", "fp32"):
        parser.error("--write is for the table of fp32 on the CPU")
    if options.side:
        print(*their_steps(options.side == "compiled", options))
        return
    sides = {"lockstep": lambda: our_steps(options, options.batch, options.steps), "eager": lambda: their_process("eager", options),
             "compiled": lambda: their_process("compiled", options)}
    found = {side: [] for side in sides}
    for repetition in range(options.repetitions):
        for side, steps in sides.items():
            say(f"jit: {repetition + 1}/{options.repetitions} {side}")
            found[side].append(steps())
    medians = {side: statistics.median(one[0] for one in found[side]) for side in sides}
    mib = {side: max(one[1] for one in found[side]) for side in sides}
    guides_mib, how = mib["lockstep"], ""
    if options.batch != GUIDES_BATCH:
        say(f"jit: memory at batch {2 * options.batch}")
        steps = 1 if options.device == "cpu" else options.steps
        mib_of_image = (our_steps(options, 2 * options.batch, steps)[1] - guides_mib) / options.batch
        guides_mib, how = guides_mib + (GUIDES_BATCH - options.batch) * mib_of_image, f", by {mib_of_image:.0f} MiB an image"
    guides_gb = guides_mib * 2**20 / 1e9
    bound = FLOPS * options.batch / product_speed(options)
    memory = "peak resident MiB" if options.device == "cpu" else "peak MiB of the GPU"
    digits = 2 if options.device == "cpu" else 4
    lines = [f"{machine(options.device)}. JiT-B/4 at {SIDE} x {SIDE} pixels, batch {options.batch}, {options.precision}, {options.threads} threads, "
             f"{options.repetitions} runs of {options.steps} steps: median (least–most). The matrix products of a step alone would take "
             f"{bound:.{digits}f} s here.",
             "", f"| side | s a step | Lockstep's speed beside it | share of the products' bound | {memory} |", "|---|---|---|---|---|"]
    for side, median in medians.items():
        times = [one[0] for one in found[side]]
        lines.append(f"| {side} | {median:.{digits}f} ({min(times):.{digits}f}–{max(times):.{digits}f}) | "
                     f"{median / medians['lockstep']:.2f} | {bound / median:.0%} | {mib[side]:.0f} |")
    verdicts = Verdicts()
    for side, target in TARGETS[options.device].items():
        ratio = medians[side] / medians["lockstep"]
        verdicts.judge(f"at least {target:g} times the speed of the twin, {side}", ratio >= target, f"{ratio:.2f}")
    verdicts.judge(f"batch {GUIDES_BATCH} in {options.precision} fits into {GUIDES_GB} GB{how}", guides_gb <= GUIDES_GB,
                   f"{guides_gb:.1f} GB")
    lines += ["", *verdicts.table()]
    publish("jit", lines, options.write)
    verdicts.end()


if __name__ == "__main__":
    main()
