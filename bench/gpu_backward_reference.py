"""The gradients of attention in torch, straight from docs/attention.md, and their accuracy rule (section 8).

As gpu_reference.py: float64 is the reference, float32 with roundings to the 16-bit type the yardstick; nothing of
Warploom is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpu_bias_reference
import gpu_functions
import torch
from gpu_cases import Problem
from gpu_reference import SMALLEST, UNIT, Inputs, Verdict, absent_rows, judge_rows, scores
from torch import Tensor


@dataclass
class Gradients:
    """(rows, heads, dim) each, and those of the bias's tensors, shaped like them."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    bias: dict[str, Tensor] = field(default_factory=dict)

    def named(self) -> dict[str, Tensor]:
        return {"dq": self.dq, "dk": self.dk, "dv": self.dv, **self.bias}


def zeros(problem: Problem, inputs: Inputs, dtype: torch.dtype) -> Gradients:
    tensors = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (inputs.q, inputs.k, inputs.v))
    return Gradients(*tensors, gpu_bias_reference.zeros(problem, inputs, dtype))


@dataclass
class Scores:
    """One sequence's Z and what follows from it, (heads, Lq, Lk) each; lse (heads, Lq)."""

    p: Tensor
    slope: Tensor  # dS / dP but for softmax's row sum, alpha and the divisor
    lse: Tensor
    exponent: Tensor  # softmax: what |Z - LSE| would be if nothing cancelled; P's relative error grows with it
    see: Tensor


def scores_of(problem: Problem, inputs: Inputs, b: int, first_q: int, q: Tensor, k: Tensor) -> Scores:
    z, see = scores(problem, inputs, b, first_q, inputs.alpha * (q @ k.transpose(1, 2)))
    if problem.score is not None:
        p, slope = gpu_functions.score(problem.score, z), gpu_functions.slope(problem.score, z)
        none = torch.zeros_like(z)
        return Scores(torch.where(see, p, 0), torch.where(see, slope, 0), none[..., 0], none, see)
    if not problem.softmax:
        sigmoid = torch.sigmoid(z)
        slope = torch.where(see, sigmoid * (1 + z * torch.sigmoid(-z)), 0)
        return Scores(torch.where(see, z * sigmoid, 0), slope, torch.zeros_like(z[..., 0]), torch.zeros_like(z), see)
    slope = 1 - (z / problem.softcap) ** 2 if problem.softcap else torch.ones_like(z)
    z = torch.where(see, z, -torch.inf)
    lse = torch.logsumexp(z, dim=2)
    base = torch.where(torch.isneginf(lse), 0, lse)[..., None]
    p = torch.exp(z - base)
    exponent = slope * abs(inputs.alpha) * (q.abs() @ k.abs().transpose(1, 2)) + base.abs()
    return Scores(p, p * slope, lse, exponent, see)


def results_of(problem: Problem, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Softmax's out, rounded to the inputs' type, and LSE (heads, rows) in float32: what backward reads. Rows that are
    not used hold 0 and -inf."""
    out = torch.zeros(*inputs.q.shape[:2], inputs.v.shape[2], dtype=torch.float64, device=inputs.q.device)
    lse = torch.full((inputs.q.shape[1], inputs.q.shape[0]), -torch.inf, device=inputs.q.device)
    for b, rows, columns in sequences(inputs):
        q, k, v = slices(inputs, rows, columns, torch.float64)
        pairs = scores_of(problem, inputs, b, rows.start, q, k)
        out[rows] = (pairs.p @ v).transpose(0, 1)
        lse[:, rows] = pairs.lse.float()
    return out.to(inputs.q.dtype), lse


def sequences(inputs: Inputs) -> list[tuple[int, slice, slice]]:
    """(number, used rows of q, used rows of k) of each sequence with both."""
    found = []
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(inputs.slots_q, inputs.slots_k, strict=True)):
        lq, lk = inputs.used_q[b], inputs.used_k[b]
        if lq > 0 and lk > 0:
            found.append((b, slice(first_q, first_q + lq), slice(first_k, first_k + lk)))
        first_q, first_k = first_q + slot_q, first_k + slot_k
    return found


def slices(inputs: Inputs, rows: slice, columns: slice, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    group = inputs.q.shape[1] // inputs.k.shape[1]
    k, v = (x[columns].to(dtype).transpose(0, 1).repeat_interleave(group, 0) for x in (inputs.k, inputs.v))
    return inputs.q[rows].to(dtype).transpose(0, 1), k, v


def backward(
    problem: Problem, inputs: Inputs, dout: Tensor, out: Tensor | None, dtype: torch.dtype, factor: Any = None
) -> tuple[Gradients, Gradients, Gradients]:
    """(gradients, bound, magnitude) in `dtype`, as gpu_reference.forward. out: what softmax's backward pass reads; the
    float64 reference computes its own."""
    kind, exact = inputs.q.dtype, dtype == torch.float64
    result, bound, magnitude = (zeros(problem, inputs, dtype) for _ in range(3))
    group = inputs.q.shape[1] // inputs.k.shape[1]
    alpha = inputs.alpha

    def rounded(x: Tensor) -> Tensor:
        if exact:
            return x
        scale: Any = 1
        if factor is not None:
            scale = 1 + torch.rand(*x.shape[:2], 1, generator=factor, device=x.device, dtype=dtype)
        return (x * scale).to(kind).to(dtype) / scale

    def by_key_head(x: Tensor) -> Tensor:
        """(heads, Lk, dim) to (Lk, key heads, dim)"""
        return x.unflatten(0, (-1, group)).sum(1).transpose(0, 1)

    for b, rows, columns in sequences(inputs):
        q, k, v = slices(inputs, rows, columns, dtype)
        do = dout[rows].to(dtype).transpose(0, 1)
        pairs = scores_of(problem, inputs, b, rows.start, q, k)
        if problem.softmax:
            over_n: Any = 1.0
        elif isinstance(inputs.divisor, Tensor):
            over_n = 1 / inputs.divisor[rows, None].to(dtype)
        else:
            over_n = 1 / inputs.divisor
        # Rounded where a kernel with 1 / N and alpha applied later does: no subnormal of the type is drawn for them.
        p, slope = pairs.p, pairs.slope
        dp = do @ v.transpose(1, 2)
        delta = torch.zeros_like(dp[..., :1])
        if problem.softmax:
            stored = (p @ v) if exact or out is None else out[rows].to(dtype).transpose(0, 1)
            delta = (do * stored).sum(dim=2, keepdim=True)
        ds = (dp - delta) * slope
        p16, ds16 = rounded(p), rounded(ds)
        result.dq[rows] = (alpha * over_n * (ds16 @ k)).transpose(0, 1)
        result.dk[columns] = by_key_head(ds16.transpose(1, 2) @ (alpha * over_n * q))
        result.dv[columns] = by_key_head(p16.transpose(1, 2) @ (over_n * do))
        over_r = alpha * over_n if problem.bias_scaled and not problem.softmax else over_n
        gpu_bias_reference.add(problem, inputs, result.bias, b, torch.where(pairs.see, over_r * ds, 0))
        if exact:
            p_error, ds_error = (torch.clamp(UNIT[kind] * x.abs(), min=SMALLEST[kind]) ** 2 * (x != 0) for x in (p, ds))
            k2, q2, do2 = k**2, (alpha * over_n * q) ** 2, (over_n * do) ** 2
            bound.dq[rows] = ((alpha * over_n) ** 2 * (ds_error @ k2)).transpose(0, 1)
            bound.dk[columns] = by_key_head(ds_error.transpose(1, 2) @ q2)
            bound.dv[columns] = by_key_head(p_error.transpose(1, 2) @ do2)
            if problem.softmax:
                # The stored O's roundings reach dS through the row sum of dO * O, the same for the whole row.
                delta2 = UNIT[kind] ** 2 * ((do * (p @ v)) ** 2).sum(dim=2, keepdim=True)
                bound.dq[rows] += (delta2 * (alpha * slope @ k) ** 2).transpose(0, 1)
                bound.dk[columns] += by_key_head((delta2 * slope**2).transpose(1, 2) @ q2)
                gpu_bias_reference.add(problem, inputs, bound.bias, b, delta2 * slope**2)
            absolute = do.abs() @ v.abs().transpose(1, 2)
            if problem.softmax:
                absolute = absolute + (do.abs() * (p @ v.abs())).sum(dim=2, keepdim=True)
            absolute = absolute * slope.abs() + ds.abs() * pairs.exponent
            scale = abs(alpha) * over_n if not isinstance(over_n, Tensor) else abs(alpha) * over_n.abs()
            magnitude.dq[rows] = (abs(1.0) * (absolute @ k.abs()) * abs(scale)).transpose(0, 1)
            magnitude.dk[columns] = by_key_head(absolute.transpose(1, 2) @ (scale * q.abs()).abs())
            gpu_bias_reference.add(problem, inputs, magnitude.bias, b, absolute * abs(over_r))
            magnitude.dv[columns] = by_key_head((p.abs() * (1 + pairs.exponent)).transpose(1, 2) @ (over_n * do).abs())
    for name, gradient in result.named().items():
        if exact:
            bound.named()[name].add_(torch.clamp(UNIT[kind] * gradient.abs(), min=SMALLEST[kind]) ** 2)
        else:  # a float32 bias's gradient is judged at q's precision too
            gradient.copy_(gradient.to(kind).to(dtype))
    return result, bound, magnitude


def judge(problem: Problem, inputs: Inputs, dout: Tensor, out: Tensor | None, actual: Gradients) -> Verdict:
    """Section 8 for dq, dk and dv. Rows that are not used or belong to nobody must be exactly 0."""
    exact, bound, magnitude = backward(problem, inputs, dout, out, torch.float64)
    generator = torch.Generator(device=inputs.q.device).manual_seed(7)
    draws = [backward(problem, inputs, dout, out, torch.float32, factor)[0] for factor in (None, generator, generator)]
    worst = Verdict(True, 0.0, 0.0)
    seen = zeros(problem, inputs, torch.float64)
    for b, rows, columns in sequences(inputs):
        q, k, _ = slices(inputs, rows, columns, torch.float64)
        see = scores_of(problem, inputs, b, rows.start, q, k).see
        gpu_bias_reference.add(problem, inputs, seen.bias, b, see.double())
    for name, found in actual.named().items():
        arrays = [gradients.named()[name] for gradients in (exact, bound, magnitude, *draws)]
        if name in actual.bias:
            # 0 where no visible pair is.
            if found[seen.bias[name] == 0].double().abs().sum() != 0:
                return Verdict(False, 1.0, 0.0, f"{name}: elements that no visible pair maps to are not 0")
            arrays = [gpu_bias_reference.by_rows(problem, inputs, name, x) for x in arrays]
            found = gpu_bias_reference.by_rows(problem, inputs, name, found)
            absent = torch.zeros(found.shape[0], dtype=torch.bool, device=found.device)
        else:
            slots, used = (inputs.slots_q, inputs.used_q) if name == "dq" else (inputs.slots_k, inputs.used_k)
            absent = absent_rows(slots, used, found)
        verdict = _judge_one(problem, *arrays[:3], arrays[3:], found.double(), absent)
        if not verdict.ok:
            verdict.message = f"{name}: {verdict.message}"
            return verdict
        if verdict.limit > 0 and (worst.limit == 0 or verdict.error / verdict.limit > worst.error / worst.limit):
            worst = verdict
    return worst


def _judge_one(
    problem: Problem,
    exact: Tensor,
    bound: Tensor,
    magnitude: Tensor,
    draws: list[Tensor],
    found: Tensor,
    absent: Tensor,
) -> Verdict:
    if not torch.isfinite(found).all():
        return Verdict(False, float("inf"), 0.0, f"{int((~torch.isfinite(found)).sum())} elements are not finite")
    if found[absent].abs().sum() != 0:
        return Verdict(False, 1.0, 0.0, "rows that belong to nobody are not 0")
    if exact.numel() == 0:
        return Verdict(True, 0.0, 0.0)
    rows = (found - exact).norm(dim=2)
    if problem.constant_score is not None:  # the tail's own rule: within 5e-3
        error = rows.norm().item() / max(exact.norm().item(), 1e-300)
        return Verdict(error <= 5e-3, error, 5e-3, "" if error <= 5e-3 else "relative error")
    errors = [draw.double() - exact for draw in draws]
    return judge_rows(exact, bound, magnitude, errors, rows)
