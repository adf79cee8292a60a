"""HSTU and softmax attention forward in torch, straight from docs/attention.md, and its accuracy rule (section 8).

Plain tensor operations in float64 (the reference) or in float32 with roundings to the 16-bit type (the yardstick);
nothing of Warploom is used. Runs on the tensors' device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpu_functions
import torch
from gpu_cases import Problem
from torch import Tensor

FLOOR = 8 * 2.0**-24
# The largest relative error of one rounding to nearest, and what may be lost whole: half the spacing of the smallest
# numbers, for bfloat16 everything below float32's normal numbers, which the special functions flush to 0.
UNIT = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SMALLEST = {torch.bfloat16: 2.0**-126, torch.float16: 2.0**-25}


@dataclass
class Inputs:
    """One call's tensors in the form of the mathematics: (rows, heads, dim), only rows of sequences are read."""

    q: Tensor
    k: Tensor
    v: Tensor
    slots_q: list[int]
    slots_k: list[int]
    used_q: list[int]
    used_k: list[int]
    contexts: list[int]
    targets: list[int]
    alpha: float
    divisor: float | Tensor
    intervals: Tensor | None = None
    # R of each sequence, (heads or 1, Lq, Lk) in float32: exactly the values of the call, 0 where R has no entry.
    bias: list[Tensor] | None = None
    # Of the bias's tensors by the names of their gradients, and of a time table the bucket of each pair, (Lq, Lk).
    bias_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buckets: list[Tensor] | None = None


def visible(problem: Problem, inputs: Inputs, b: int, first_q: int) -> Tensor:
    """(heads or 1, Lq, Lk): section 4, line by line."""
    lq, lk, device = inputs.used_q[b], inputs.used_k[b], inputs.q.device
    j = torch.arange(lk, device=device)[None, :]
    if inputs.intervals is not None:
        see = torch.zeros(inputs.intervals.shape[0], lq, lk, dtype=torch.bool, device=device)
        for n in range(inputs.intervals.shape[2]):
            begin, end = inputs.intervals[:, first_q : first_q + lq, n, :, None].long().unbind(2)
            see |= (begin <= j) & (j < end)
        return see
    r = torch.arange(lq, device=device)[:, None] + lk - lq
    nc, nt = inputs.contexts[b], inputs.targets[b]
    h = lk - nt
    if problem.mask_function is not None:
        head = torch.arange(inputs.q.shape[1], device=device)[:, None, None]
        return gpu_functions.visible(problem.mask_function, r + lq - lk, r, j, lk, nc, nt, b, head)
    left = 1 << 40 if problem.left is None else problem.left
    right = 1 << 40 if problem.right is None else problem.right
    history = (r - left <= j) & (j <= r + right)
    start = h + torch.div(r - h, problem.group, rounding_mode="floor") * problem.group
    window = j >= (h if problem.from_history_end else r) - left
    target = (window & (j < h)) | ((start <= j) & (j <= r))
    see = torch.where((r >= 0) & (r < nc), j < h, torch.where(r >= h, target, history))
    return see[None]


@dataclass
class Results:
    """(rows, heads, Dv), LSE and the largest |S| of a row (rows, heads). HSTU's LSE is 0."""

    out: Tensor
    lse: Tensor
    largest_score: Tensor
    bound: Tensor  # float64: the variance of out's largest single roundings
    magnitude: Tensor  # float64: out if nothing cancelled


def scores(problem: Problem, inputs: Inputs, b: int, first_q: int, z: Tensor) -> tuple[Tensor, Tensor]:
    """(Z, what is visible) of sequence b; z: alpha Q K^T."""
    see = visible(problem, inputs, b, first_q).expand(z.shape)
    if inputs.bias is not None:
        bias = inputs.bias[b].to(z.dtype)
        see = see & ~torch.isneginf(bias)
        scale = inputs.alpha if problem.bias_scaled and not problem.softmax else 1.0
        z = z + scale * torch.where(see, bias, 0)
    if problem.softcap:
        z = problem.softcap * torch.tanh(z / problem.softcap)
    return z, see


def probabilities(problem: Problem, z: Tensor, see: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(P before its rounding, what O is divided with but for the divisor, LSE) of one sequence."""
    if not problem.softmax:
        ones = torch.ones(*z.shape[:2], 1, dtype=z.dtype, device=z.device)
        p = z * torch.sigmoid(z) if problem.score is None else gpu_functions.score(problem.score, z)
        return torch.where(see, p, 0), ones, torch.zeros_like(ones)[..., 0]
    z = torch.where(see, z, -torch.inf)
    largest = z.amax(dim=2, keepdim=True)
    p = torch.exp(z - torch.where(torch.isneginf(largest), 0, largest))
    total = p.sum(dim=2, keepdim=True)
    lse = (largest + torch.log(total))[..., 0]
    return p, torch.where(total == 0, 1, total), lse


def forward(problem: Problem, inputs: Inputs, dtype: torch.dtype, factor: Any = None) -> Results:
    """The results in `dtype`.

    float64: exact. float32: the yardstick, with P and out rounded to the inputs' type; `factor` (a generator) scales
    each row of P by a random number around its rounding.
    """
    kind = inputs.q.dtype
    exact = dtype == torch.float64
    rows_heads = tuple(inputs.q.shape[:2])
    out, bound, magnitude = (
        torch.zeros(*rows_heads, inputs.v.shape[2], dtype=dtype, device=inputs.q.device) for _ in range(3)
    )
    lse = torch.full(rows_heads, -torch.inf, dtype=dtype, device=inputs.q.device)
    largest_score = torch.zeros_like(lse)
    group = inputs.q.shape[1] // inputs.k.shape[1]
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(inputs.slots_q, inputs.slots_k, strict=True)):
        lq, lk = inputs.used_q[b], inputs.used_k[b]
        rows = slice(first_q, first_q + lq)
        if lq > 0 and lk > 0:
            q = inputs.q[rows].to(dtype).transpose(0, 1)
            k, v = (
                x[first_k : first_k + lk].to(dtype).transpose(0, 1).repeat_interleave(group, 0)
                for x in (inputs.k, inputs.v)
            )
            z, see = scores(problem, inputs, b, first_q, inputs.alpha * (q @ k.transpose(1, 2)))
            p, total, sequence_lse = probabilities(problem, z, see)
            lse[rows] = sequence_lse.T
            largest_score[rows] = torch.where(see, z.abs(), 0).amax(dim=2).T
            divisor: Any = (
                inputs.divisor[rows, None].to(dtype) if isinstance(inputs.divisor, Tensor) else inputs.divisor
            )
            divisor = divisor * total
            if not exact:
                scale = (
                    1
                    if factor is None
                    else 1 + torch.rand(*p.shape[:2], 1, generator=factor, device=p.device, dtype=dtype)
                )
                p = (p * scale).to(kind).to(dtype) / scale
            out[rows] = ((p @ v) / divisor).transpose(0, 1)
            if exact:
                magnitude[rows] = ((p.abs() @ v.abs()) / abs(divisor)).transpose(0, 1)
                error = torch.clamp(UNIT[kind] * p.abs(), min=SMALLEST[kind]) * (p != 0)
                bound[rows] = ((error**2 @ v**2) / divisor**2).transpose(0, 1)
        first_q, first_k = first_q + slot_q, first_k + slot_k
    if exact:
        bound += torch.clamp(UNIT[kind] * out.abs(), min=SMALLEST[kind]) ** 2
    else:
        out = out.to(kind).to(dtype)
    return Results(out, lse, largest_score, bound, magnitude)


@dataclass
class Verdict:
    ok: bool
    error: float  # of the whole tensor, relative to its norm
    limit: float
    message: str = ""


def judge(problem: Problem, inputs: Inputs, actual: Tensor, lse: Tensor | None = None) -> Verdict:
    """Section 8 for out, and for LSE (rows, heads) when there is one. actual: (rows, heads, Dv); rows that are not used
    or belong to nobody must be exactly 0."""
    reference = forward(problem, inputs, torch.float64)
    exact, bound, magnitude = reference.out, reference.bound, reference.magnitude
    found = actual.double()
    if not torch.isfinite(found).all():
        return Verdict(False, float("inf"), 0.0, f"{int((~torch.isfinite(found)).sum())} elements are not finite")
    absent = absent_rows(inputs.slots_q, inputs.used_q, inputs.q)
    if found[absent].abs().sum() != 0:
        return Verdict(False, 1.0, 0.0, "rows that belong to nobody are not 0")
    if exact.numel() == 0:
        return Verdict(True, 0.0, 0.0)
    rows = (found - exact).norm(dim=2)
    if problem.constant_score is not None:  # the tail's own rule: each row within 5e-3
        worst = (rows / exact.norm(dim=2).clamp_min(1e-300)).max().item()
        return Verdict(worst <= 5e-3, worst, 5e-3, "" if worst <= 5e-3 else "relative error of the worst row")
    generator = torch.Generator(device=inputs.q.device).manual_seed(7)
    draws = [
        forward(problem, inputs, torch.float32, factor).out.double() - exact for factor in (None, generator, generator)
    ]
    verdict = judge_rows(exact, bound, magnitude, draws, rows)
    if verdict.ok and lse is not None:
        judge_lse(reference, lse.double(), verdict)
    return verdict


def judge_rows(exact: Tensor, bound: Tensor, magnitude: Tensor, draws: list[Tensor], rows: Tensor) -> Verdict:
    """Section 8's limits for a tensor and for each of its rows. exact, bound, magnitude, draws (each draw's error):
    (rows, heads, dim); rows: the error of each."""
    floor = FLOOR * magnitude.norm(dim=2)
    drawn_rows = torch.stack([draw.norm(dim=2) for draw in draws]).max(dim=0).values
    row_limits = torch.maximum(torch.maximum(1.1 * drawn_rows, 2 * bound.sum(dim=2).sqrt()), floor)
    n = max(1, int((magnitude.norm(dim=2) > 0).sum()))
    limit = 1.1 * (1 + n**-0.5) * max(draw.norm().item() for draw in draws)
    if n <= 4:  # a few numbers
        limit = max(limit, bound.sum().sqrt().item())
    limit = max(limit, floor.norm().item())
    error, norm = rows.norm().item(), exact.norm().item()
    scale = norm if norm > 0 else 1.0
    verdict = Verdict(error <= limit, error / scale, limit / scale)
    excess = rows - row_limits
    if excess.max() > 0:
        row, head = divmod(int(excess.argmax()), excess.shape[1])
        verdict.ok = False
        verdict.message = f"row {row} head {head}: error {rows[row, head]:.3e}, limit {row_limits[row, head]:.3e}"
    elif not verdict.ok:
        verdict.message = f"the whole tensor is past its limit: {verdict.error:.3e} of {verdict.limit:.3e}"
    return verdict


def judge_lse(reference: Results, lse: Tensor, verdict: Verdict) -> None:
    """2e-5 * (1 + largest |S| the row sees), -inf exactly where nothing is seen."""
    nothing = torch.isneginf(reference.lse)
    if not torch.equal(nothing, torch.isneginf(lse)):
        verdict.ok, verdict.message = False, "LSE is -inf elsewhere than where a row sees nothing"
        return
    excess = torch.where(nothing, 0, (lse - reference.lse).abs()) / (2e-5 * (1 + reference.largest_score))
    worst = excess.max().item()
    if not worst <= 1:  # a NaN too
        row, head = divmod(int(excess.argmax()), excess.shape[1])
        verdict.ok, verdict.message = False, f"LSE of row {row} head {head}: {worst:.2f} of its limit"


def absent_rows(slots: list[int], used: list[int], like: Tensor) -> Tensor:
    """Which rows of a tensor are not used or belong to nobody."""
    absent = torch.ones(like.shape[0], dtype=torch.bool)
    first = 0
    for slot, length in zip(slots, used, strict=True):
        absent[first : first + length] = False
        first += slot
    return absent.to(like.device)
