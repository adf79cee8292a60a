"""Where dR goes (docs/attention.md, section 5), for gpu_backward_reference.py: gradients of a bias as the mathematics
has them, in the form in which section 8 judges them.

Plain indexing in torch; nothing of Warploom is used.
"""

from __future__ import annotations

import torch
from gpu_cases import Problem
from gpu_reference import Inputs
from torch import Tensor

TABLES = ("position", "time", "bucketed")


def zeros(problem: Problem, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """A gradient for each tensor of the bias, shaped like it."""
    return {name: torch.zeros(shape, dtype=dtype, device=inputs.q.device) for name, shape in inputs.bias_shapes.items()}


def add(problem: Problem, inputs: Inputs, sums: dict[str, Tensor], b: int, dr: Tensor) -> None:
    """Adds dR of sequence b, (heads, Lq, Lk)."""
    if problem.bias is None:
        return
    lq, lk = dr.shape[1:]
    i, j = torch.arange(lq, device=dr.device), torch.arange(lk, device=dr.device)
    r = i + lk - lq
    if problem.bias in TABLES:
        assert inputs.buckets is not None
        places = {"dposition": (r[:, None] - j).clamp(min=0), "dtime": inputs.buckets[b]}
        for name, total in sums.items():
            place = places[name]
            shared = dr.sum(dim=0, keepdim=True) if total.shape[0] == 1 else dr
            total.index_add_(1, place.clamp(max=total.shape[1] - 1).flatten(), shared.flatten(1))
        return
    total = sums["dbias"]
    rows = r if problem.bias_rows == "k" else i
    if problem.bias == "dense":
        target = total[b if total.shape[0] > 1 else 0]
    else:
        first = sum(packed_sizes(problem, inputs)[:b])
        pitch = pitches(problem, inputs)[b]
        target = total[:, first : first + packed_sizes(problem, inputs)[b]].unflatten(1, (-1, max(1, pitch)))
    there = (rows >= 0) & (rows < target.shape[1])
    width = min(lk, target.shape[2])
    shared = dr.sum(dim=0, keepdim=True) if target.shape[0] == 1 else dr
    target[:, rows[there], :width] += shared[:, there, :width]


def pitches(problem: Problem, inputs: Inputs) -> list[int]:
    chunk = 4 if problem.bias_float32 else 8
    return [-(-slot // chunk) * chunk for slot in inputs.slots_k]


def packed_sizes(problem: Problem, inputs: Inputs) -> list[int]:
    rows = inputs.slots_k if problem.bias_rows == "k" else inputs.slots_q
    return [pitch * count for pitch, count in zip(pitches(problem, inputs), rows, strict=True)]


def by_rows(problem: Problem, inputs: Inputs, name: str, gradient: Tensor) -> Tensor:
    """(rows, heads, columns): the rows that are judged one by one, each table entry alone."""
    if name != "dbias":
        return gradient.T[..., None]
    if problem.bias == "dense":
        return gradient.transpose(1, 2).flatten(0, 1)
    longest = max((1, *pitches(problem, inputs)))
    parts = [
        torch.nn.functional.pad(part.unflatten(1, (-1, max(1, pitch))), (0, longest - max(1, pitch))).transpose(0, 1)
        for part, pitch in zip(
            gradient.split(packed_sizes(problem, inputs), dim=1), pitches(problem, inputs), strict=True
        )
        if part.shape[1] > 0
    ]
    return torch.cat(parts) if parts else gradient.new_zeros(0, gradient.shape[0], longest)
