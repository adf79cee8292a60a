"""The attention of docs/attention.md in NumPy, slow and obvious: the reference that the library is judged by.

Written from the specification alone. `evaluate` runs the same steps in float64 (the reference) or in float32 with
roundings to a 16-bit type (the yardstick of `accuracy.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass
class Bias:
    """kind: "dense" (values 4-D), "packed" (values 2-D) or "bucketed" (position, time, timestamps, thresholds)."""

    kind: str
    rows: str = "k"
    dtype: str = "float32"
    values: Array | None = None
    position: Array | None = None
    time: Array | None = None
    timestamps: Array | None = None
    thresholds: Array | None = None


@dataclass
class Problem:
    """One call. q, k, v, dout are jagged, (rows, heads, dim), float32 arrays that hold values of `dtype`."""

    op: str
    dtype: str
    slots_q: list[int]
    slots_k: list[int]
    q: Array
    k: Array
    v: Array
    dout: Array
    used_q: list[int] | None = None
    used_k: list[int] | None = None
    left: int | None = None
    right: int | None = None
    contexts: list[int] | int | None = None
    targets: list[int] | int | None = None
    group: int = 1
    from_history_end: bool = False
    intervals: Array | None = None
    bias: Bias | None = None
    alpha: float | None = None
    divisor: float | Array | None = None
    bias_scaled: bool = True
    softcap: float | None = None
    dense: bool = False
    score: tuple[Callable[[Array], Array], Callable[[Array], Array]] | None = None  # P and its slope instead of silu's

    @property
    def heads(self) -> int:
        return int(self.q.shape[1])

    @property
    def scale(self) -> float:
        return 1 / np.sqrt(self.q.shape[2]) if self.alpha is None else self.alpha

    def count(self, counts: list[int] | int | None, b: int, length: int) -> int:
        if counts is None:
            return 0
        if isinstance(counts, int):
            return counts if length > 0 else 0
        return counts[b]


@dataclass
class Results:
    """lse and the gradients of q, k, v, bias (values, position, time); each shaped like its tensor, lse (H, Tq)."""

    out: Array
    dq: Array
    dk: Array
    dv: Array
    lse: Array | None = None
    dbias: Array | None = None
    dposition: Array | None = None
    dtime: Array | None = None
    largest_score: Array = field(default_factory=lambda: np.zeros(0))  # (H, Tq): largest |S| that the row sees

    def tensors(self) -> dict[str, Array]:
        named = {name: getattr(self, name) for name in ("out", "dq", "dk", "dv", "dbias", "dposition", "dtime")}
        return {name: value for name, value in named.items() if value is not None}


def visible(problem: Problem, b: int, lq: int, lk: int, first_q: int) -> Array:
    """(H or 1, Lq, Lk) booleans: section 4, line by line."""
    i = np.arange(lq)[:, None]
    j = np.arange(lk)[None, :]
    r = i + lk - lq
    if problem.intervals is not None:
        rows = problem.intervals[:, first_q : first_q + lq].astype(np.int64)  # (heads, Lq, n, 2)
        inside = (rows[..., 0, None] <= j[None, :, None]) & (j[None, :, None] < rows[..., 1, None])
        return np.asarray(inside.any(axis=2))
    nc, nt = problem.count(problem.contexts, b, lk), problem.count(problem.targets, b, lk)
    h = lk - nt
    left = 10**9 if problem.left is None else problem.left
    right = 10**9 if problem.right is None else problem.right
    history = (r - left <= j) & (j <= r + right)
    context = (j < h) & (r >= 0)
    start = h + (r - h) // problem.group * problem.group
    window_begin = h - left if problem.from_history_end else r - left
    target = ((window_begin <= j) & (j < h)) | ((start <= j) & (j <= r))
    is_target = r >= h
    is_context = (r >= 0) & (r < nc)
    return np.where(is_context, context, np.where(is_target, target, history))[None]


def default_thresholds(n_time: int) -> Array:
    return np.ceil(np.exp(0.301 * np.arange(1, n_time, dtype=np.float64)))


def bias_places(problem: Problem, b: int, lq: int, lk: int, first_k: int) -> list[tuple[str, Array, Any]]:
    """[(field, table, index)]: the sequence's R is the sum of table[index], each broadcastable to (H, Lq, Lk)."""
    bias = problem.bias
    if bias is None:
        return []
    i = np.arange(lq)[:, None]
    j = np.arange(lk)[None, :]
    r = i + lk - lq
    head = np.arange(problem.heads)[:, None, None]

    def heads(table: Array, axis: int) -> Array:
        return head if table.shape[axis] > 1 else np.zeros_like(head)

    if bias.kind == "dense":
        table = bias.values
        assert table is not None
        row = r if bias.rows == "k" else i
        sequence = b if table.shape[0] > 1 else 0
        return [("values", table, (sequence, heads(table, 1), row[None], j[None]))]
    if bias.kind == "packed":
        table = bias.values
        assert table is not None
        elements = 16 // (4 if bias.dtype == "float32" else 2)
        pitches = [-(-slot // elements) * elements for slot in problem.slots_k]
        rows = problem.slots_k if bias.rows == "k" else problem.slots_q
        begin = sum(n * pitch for n, pitch in zip(rows[:b], pitches[:b], strict=True))
        row = r if bias.rows == "k" else i
        return [("values", table, (heads(table, 0), (begin + row * pitches[b] + j)[None]))]
    places = []
    if bias.position is not None:
        index = np.clip(r - j, 0, bias.position.shape[1] - 1)
        places.append(("position", bias.position, (heads(bias.position, 0), index[None])))
    if bias.time is not None:
        assert bias.timestamps is not None
        n_time = bias.time.shape[1]
        thresholds = default_thresholds(n_time) if bias.thresholds is None else bias.thresholds
        t = bias.timestamps[first_k : first_k + lk]
        distance = np.abs(t[np.clip(r, 0, None)[:, 0], None] - t[None, :])
        index = (thresholds[None, None, :] <= distance[..., None]).sum(-1)
        places.append(("time", bias.time, (heads(bias.time, 0), index[None])))
    return places


def _sigmoid(z: Array) -> Array:
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


Round = Callable[[Array], Array]


def _identity(x: Array) -> Array:
    return x


@dataclass
class Steps:
    """How `evaluate` computes: its type, what rounds P and dS around a product, what rounds stored results.

    stored_out: the out that softmax's backward pass reads (the row sum of dO * O), instead of the one computed here.
    """

    dtype: Any = np.float64
    round_factor: Round = _identity
    store: Round = _identity
    store_bias: Round = _identity
    stored_out: Array | None = None


def evaluate(problem: Problem, steps: Steps | None = None) -> tuple[Results, Results, Results]:
    """(results, bounds, magnitudes) of a call.

    bounds: for each element the variance (in units of the type's rounding) of the largest single roundings, propagated
    through the products. magnitudes: each result if nothing cancelled. Both are used with float64 steps only.
    """
    steps = steps or Steps()
    dtype = steps.dtype
    q, k, v, dout = (x.astype(dtype) for x in (problem.q, problem.k, problem.v, problem.dout))
    group = problem.heads // k.shape[1]
    softmax = problem.op == "softmax"
    kinds = ("out", "dq", "dk", "dv")
    shapes = {"out": dout.shape, "dq": q.shape, "dk": k.shape, "dv": v.shape}
    everything = [{name: np.zeros(shapes[name], dtype) for name in kinds} for _ in range(3)]
    result, bound, magnitude = everything
    bias = problem.bias
    names = {"values": "dbias", "position": "dposition", "time": "dtime"}
    for name, gradient in names.items():
        table = None if bias is None else getattr(bias, name)
        for target in everything:
            if table is not None:
                target[gradient] = np.zeros(table.shape, dtype)
    lse = np.full((problem.heads, q.shape[0]), -np.inf, dtype)
    largest = np.zeros((problem.heads, q.shape[0]))
    longest_q = max(problem.slots_q, default=0)

    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(problem.slots_q, problem.slots_k, strict=True)):
        lq = slot_q if problem.used_q is None else problem.used_q[b]
        lk = slot_k if problem.used_k is None else problem.used_k[b]
        rows, columns = slice(first_q, first_q + lq), slice(first_k, first_k + lk)
        first_q, first_k = first_q + slot_q, first_k + slot_k
        if lq == 0:
            continue
        qs, dos = (x[rows].transpose(1, 0, 2) for x in (q, dout))
        ks, vs = (x[columns].transpose(1, 0, 2).repeat(group, axis=0) for x in (k, v))
        see = np.broadcast_to(visible(problem, b, lq, lk, rows.start), (problem.heads, lq, lk)).copy()
        places = bias_places(problem, b, lq, lk, columns.start)
        r = np.zeros((problem.heads, lq, lk), dtype)
        for _, table, index in places:
            r = r + table[index].astype(dtype)
        see &= r != -np.inf
        r = np.where(see, r, 0)

        alpha = dtype(problem.scale)
        scores = qs @ ks.transpose(0, 2, 1)
        if softmax:
            z = alpha * scores + r
            slope = np.ones_like(z)
            if problem.softcap:
                cap = dtype(problem.softcap)
                tanh = np.tanh(z / cap)
                z, slope = cap * tanh, 1 - tanh * tanh
            largest[:, rows] = np.where(see, np.abs(z), 0).max(axis=2, initial=0)
            top = np.where(see, z, -np.inf).max(axis=2, initial=-np.inf)
            top = np.where(np.isfinite(top), top, 0)[..., None]
            p = np.where(see, np.exp(z - top), 0)
            total = p.sum(axis=2, keepdims=True)
            with np.errstate(divide="ignore"):
                lse[:, rows] = (np.log(total) + np.where(total > 0, top, 0))[..., 0]
            p = p / np.where(total > 0, total, 1)
            over_n = np.ones((lq, 1), dtype)
        else:
            z = alpha * (scores + r) if problem.bias_scaled else alpha * scores + r
            sigmoid = _sigmoid(z)
            p, slope = z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))
            if problem.score is not None:
                p, slope = (function(z).astype(dtype) for function in problem.score)
            p, slope = np.where(see, p, 0), np.where(see, slope, 0)
            if isinstance(problem.divisor, np.ndarray):
                over_n = 1 / problem.divisor[rows, None].astype(dtype)
            else:
                over_n = np.full((lq, 1), 1 / (longest_q if problem.divisor is None else problem.divisor), dtype)

        def by_key_head(x: Array) -> Array:
            return x.reshape(x.shape[0] // group, group, *x.shape[1:]).sum(axis=1).transpose(1, 0, 2)

        p16 = steps.round_factor(p)
        out = (p16 @ vs) * over_n
        dp = (dos @ vs.transpose(0, 2, 1)) * over_n
        if softmax:
            stored = out if steps.stored_out is None else steps.stored_out[rows].transpose(1, 0, 2)
            delta = (dos * stored).sum(axis=2, keepdims=True)
            dz = p * (dp - delta) * slope
        else:
            dz = np.where(see, dp * slope, 0)
        ds = alpha * dz
        dr = ds if not softmax and problem.bias_scaled else dz
        ds16, dr16 = steps.round_factor(ds), steps.round_factor(dr)
        result["out"][rows] = out.transpose(1, 0, 2)
        result["dq"][rows] = (ds16 @ ks).transpose(1, 0, 2)
        result["dk"][columns] = by_key_head(ds16.transpose(0, 2, 1) @ qs)
        result["dv"][columns] = by_key_head(p16.transpose(0, 2, 1) @ (dos * over_n))
        for name, _, index in places:
            np.add.at(result[names[name]], index, np.where(see, dr16, 0))
        if dtype is np.float64:
            squares = [x * x for x in (p, ds, dr, qs, ks, vs, dos * over_n)]
            p2, ds2, dr2, q2, k2, v2, do2 = squares
            bound["out"][rows] = ((p2 @ v2) * over_n**2).transpose(1, 0, 2)
            bound["dq"][rows] = (ds2 @ k2).transpose(1, 0, 2)
            bound["dk"][columns] = by_key_head(ds2.transpose(0, 2, 1) @ q2)
            bound["dv"][columns] = by_key_head(p2.transpose(0, 2, 1) @ do2)
            if softmax:
                # The stored O's roundings reach dS through the row sum of dO * O, the same for the whole row.
                per_delta = p * slope
                delta2 = ((dos * out) ** 2).sum(axis=2, keepdims=True)
                bound["dq"][rows] += (delta2 * (alpha * per_delta @ ks) ** 2).transpose(1, 0, 2)
                bound["dk"][columns] += by_key_head((delta2 * (alpha * per_delta) ** 2).transpose(0, 2, 1) @ q2)
                dr2 = dr2 + delta2 * per_delta**2
            aqs, aks, avs, ados = (np.abs(x) for x in (qs, ks, vs, dos * np.abs(over_n)))
            adp = ados @ avs.transpose(0, 2, 1)
            absolute_out = (np.abs(p) @ avs) * np.abs(over_n)
            if softmax:
                adz = p * (adp + (np.abs(dos) * absolute_out).sum(axis=2, keepdims=True)) * slope
            else:
                adz = np.where(see, adp * np.abs(slope), 0)
            ads = np.abs(alpha) * adz
            adr = ads if not softmax and problem.bias_scaled else adz
            magnitude["out"][rows] = absolute_out.transpose(1, 0, 2)
            magnitude["dq"][rows] = (ads @ aks).transpose(1, 0, 2)
            magnitude["dk"][columns] = by_key_head(ads.transpose(0, 2, 1) @ aqs)
            magnitude["dv"][columns] = by_key_head(np.abs(p).transpose(0, 2, 1) @ ados)
            for name, _, index in places:
                np.add.at(bound[names[name]], index, np.where(see, dr2, 0))
                np.add.at(magnitude[names[name]], index, np.where(see, adr, 0))

    for name in kinds:
        result[name] = steps.store(result[name])
    for name in names.values():
        if name in result:
            result[name] = steps.store_bias(result[name]) if name == "dbias" else result[name]
    keyed = [Results(**arrays, lse=lse if softmax else None, largest_score=largest) for arrays in everything]
    return keyed[0], keyed[1], keyed[2]
