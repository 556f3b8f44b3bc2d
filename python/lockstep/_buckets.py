"""How a model's gradients are laid out for the reduction. Pure: the same for the same parameters, in every rank and for ever.

That is why sums are equal, bit for bit, before and after a rank is lost: torch's own reducer lays its buckets out anew after the first
step, in the order in which that step's gradients were ready, so a rank that begins later would add in another order.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FIRST_BUCKET_BYTES = 1 << 20  # small, so that the first reduction begins early, as in torch
REMEDY = "build the same model in all ranks, with the same torch"


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


def describe(tensors: dict[str, list[tuple[str, torch.Tensor]]], arguments: dict[str, object]) -> dict[str, str]:
    """Of all that must be the same in all ranks: subject → what it is. `tensors`: by kind, with their names, in order: "parameter 0" →
    "layer.weight float32 [4, 8]". `arguments`: "bucket_cap_mb" → "25.0"."""
    return {name: str(value) for name, value in arguments.items()} | {
        f"{kind} {number}": f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        for kind, named in tensors.items() for number, (name, tensor) in enumerate(named)}


def difference(ours: dict[str, str], theirs: dict[str, str], their_rank: int) -> str:
    """Of two descriptions, in words; empty when they are equal."""
    for subject in {**ours, **theirs}:
        mine, other = ours.get(subject, "none"), theirs.get(subject, "none")
        if mine != other:
            return f"{subject} is {mine} in this rank and {other} in rank {their_rank}"
    return ""
