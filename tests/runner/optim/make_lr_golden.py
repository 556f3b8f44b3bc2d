"""Makes lr_golden.inc: learning rates by torch.optim.lr_scheduler, for lr_schedule_test.cc.

Run it from this folder with any PyTorch 2.x: python make_lr_golden.py > lr_golden.inc
"""

import torch
from torch.optim import lr_scheduler

STEPS = 40
LR = 1e-3


def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)


def run(make):
    opt = optimizer()
    schedule = make(opt)
    rates = []
    for _ in range(STEPS):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return rates


def warmed_up(warmup, make_after):
    def make(opt):
        if warmup == 0:
            return make_after(opt)
        if warmup == 1:
            first = lr_scheduler.ConstantLR(opt, factor=1.0, total_iters=1)
        else:
            first = lr_scheduler.LinearLR(opt, start_factor=1.0 / warmup, end_factor=1.0, total_iters=warmup - 1)
        return lr_scheduler.SequentialLR(opt, [first, make_after(opt)], milestones=[warmup])

    return make


def constant(opt):
    return lr_scheduler.ConstantLR(opt, factor=1.0, total_iters=0)


def exponential(opt):
    return lr_scheduler.ExponentialLR(opt, gamma=0.95 ** (1.0 / 7))


def cosine(warmup):
    return lambda opt: lr_scheduler.CosineAnnealingLR(opt, T_max=STEPS - 1 - warmup, eta_min=1e-5)


def noam(warmup):
    return lambda opt: lr_scheduler.LambdaLR(
        opt, lambda s: min((s + 1) ** -0.5, (s + 1) * warmup**-1.5) * warmup**0.5
    )


def emit(kind, warmup, rates):
    numbers = ", ".join(repr(rate) for rate in rates)
    print(f"{{LrScheduleKind::{kind}, {warmup}, {{{numbers}}}}},")


def emit_plateau(figures):
    """Rows {figure, rate after it}: factor 0.5, patience 2, min_lr 1e-4."""
    opt = optimizer()
    schedule = lr_scheduler.ReduceLROnPlateau(opt, mode="max", factor=0.5, patience=2, min_lr=1e-4)
    print("#elif defined(LR_GOLDEN_PLATEAU)")
    for figure in figures:
        schedule.step(figure)
        print(f"{{{figure!r}, {opt.param_groups[0]['lr']!r}}},")


def main():
    print(f"// Made by make_lr_golden.py with torch {torch.__version__.split('+')[0]}; do not edit.")
    print("// clang-format off")
    print("#if defined(LR_GOLDEN_SCHEDULES)")
    for warmup in (0, 1, 8):
        emit("kConstant", warmup, run(warmed_up(warmup, constant)))
        emit("kExponential", warmup, run(warmed_up(warmup, exponential)))
        emit("kCosine", warmup, run(warmed_up(warmup, cosine(warmup))))
    for warmup in (1, 8):
        emit("kNoam", warmup, run(noam(warmup)))
    emit_plateau(
        [0.1, 0.2, 0.2, 0.20001, 0.2, 0.3, 0.29, 0.28, 0.30001, 0.31, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]
        + [0.2] * 12
        + [0.5]
        + [0.1] * 4
    )
    print("#endif")


if __name__ == "__main__":
    main()
