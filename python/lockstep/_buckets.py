"""How a model's gradients are laid out for the reduction. Pure: the same for the same parameters, in every rank and for ever.

That is why sums are equal, bit for bit, before and after a rank is lost: torch's own reducer lays its buckets out anew after the first
step, in the order in which that step's gradients were ready, so a rank that begins later would add in another order.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first reduction begins early, as in torch


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced together. `params` are indices of the model's parameters that require a gradient."""
    params: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    numel: int


def layout(params: Sequence[torch.Tensor], cap_bytes: int) -> list[Bucket]:
    """Buckets in the order of their reduction: in reverse order of registration, which is about the order in which gradients are ready.
    A bucket is full with `cap_bytes`, the first one earlier, and has one dtype and device."""
    buckets: list[Bucket] = []
    open_params: list[int] = []

    def close() -> None:
        first = params[open_params[0]]
        buckets.append(Bucket(tuple(open_params), first.dtype, first.device, sum(params[i].numel() for i in open_params)))
        open_params.clear()

    size = 0
    for index in reversed(range(len(params))):
        param = params[index]
        if open_params and (param.dtype, param.device) != (params[open_params[0]].dtype, params[open_params[0]].device):
            close()
            size = 0
        open_params.append(index)
        size += param.numel() * param.element_size()
        if size >= (cap_bytes if buckets else min(cap_bytes, FIRST_BUCKET_BYTES)):
            close()
            size = 0
    if open_params:
        close()
    return buckets


def describe(names: Sequence[str], params: Sequence[torch.Tensor]) -> list[str]:
    """Of each parameter, in order: "layer.weight float32 [4, 8]"."""
    return [f"{name} {str(param.dtype).removeprefix('torch.')} {list(param.shape)}" for name, param in zip(names, params, strict=True)]


def difference(ours: Sequence[str], theirs: Sequence[str], their_rank: int) -> str:
    """Of two descriptions, in words; empty when they are equal."""
    for index in range(max(len(ours), len(theirs))):
        mine = ours[index] if index < len(ours) else "none"
        other = theirs[index] if index < len(theirs) else "none"
        if mine != other:
            return f"parameter {index} is {mine} in this rank and {other} in rank {their_rank}"
    return ""
