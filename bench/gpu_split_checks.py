"""What attention of short queries against long keys promises beyond its accuracy (gpu_cases.SPLIT_PROBLEMS)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import warploom as wl
from gpu_cases import SPLIT_CHECKS, SPLIT_PROBLEMS
from gpu_checks import DEVICE, _cumulative, _int32, _same, build, poisoned
from gpu_reference import Verdict
from torch import Tensor

QUERIES, KEYS = (3, 64, 300, 1, 20), (5000, 700, 900, 2570, 257)


def run(name: str) -> Verdict:
    return SPLIT[name]()


def _batch(dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(7)
    shapes = ((sum(QUERIES), 4, 64), (sum(KEYS), 2, 64), (sum(KEYS), 2, 64))
    return [torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes]


def _attend(softmax: bool, tensors: list[Tensor], queries: tuple[int, ...], keys: tuple[int, ...], most: int) -> Tensor:
    cumulative = (_cumulative(queries), _cumulative(keys))
    longest = {"max_seqlen_q": max(queries), "max_seqlen_k": most}
    if softmax:
        return wl.softmax_attention(*tensors, *cumulative, mask=wl.Mask.causal(), **longest)
    return wl.hstu_attention(*tensors, *cumulative, divisor=10.0, **longest)


def independent_of_the_batch() -> Verdict:
    """A sequence alone, with the others, among the same ones in another order, and with another max_seqlen_k."""
    for softmax in (False, True):
        for dtype in (torch.bfloat16, torch.float16):
            q, k, v = _batch(dtype)
            parts_q, parts_k, parts_v = q.split(QUERIES), k.split(KEYS), v.split(KEYS)
            together = _attend(softmax, [q, k, v], QUERIES, KEYS, max(KEYS)).split(QUERIES)
            order = (4, 1, 0, 3)  # without the long query: no other kernel runs
            some = [torch.cat([parts[n] for n in order]) for parts in (parts_q, parts_k, parts_v)]
            queries, keys = tuple(QUERIES[n] for n in order), tuple(KEYS[n] for n in order)
            among = _attend(softmax, some, queries, keys, 100_000).split(queries)
            for n, lq in enumerate(QUERIES):
                alone = _attend(softmax, [parts_q[n], parts_k[n], parts_v[n]], (lq,), (KEYS[n],), KEYS[n])
                if not torch.equal(alone, together[n]):
                    return _same(False, f"softmax {softmax}, {dtype}: sequence {n} depends on its batch")
                if n in order and not torch.equal(alone, among[order.index(n)]):
                    return _same(False, f"softmax {softmax}, {dtype}: sequence {n} depends on order or max_seqlen_k")
    return _same(True, "")


def repeated_bitwise() -> Verdict:
    for name in ("split-L17-grouped", "split-softmax-L64-grouped", "split-bias-bucketed"):
        problem = SPLIT_PROBLEMS[name]
        _, call = build(problem, seed=1)
        attend = wl.softmax_attention if problem.softmax else wl.hstu_attention
        first = attend(**call)
        if not all(torch.equal(first, attend(**poisoned(call))) for _ in range(10)):
            return _same(False, f"{name}: repeated calls differ")
    return _same(True, "")


def graph_capture() -> Verdict:
    """Lengths of keys, and how many of the sequences have some, change between replays."""
    for softmax in (False, True):
        torch.manual_seed(1)
        q = torch.randn(4 * 2, 4, 64, device=DEVICE).bfloat16()
        k, v = (torch.randn(20_000, 2, 64, device=DEVICE).bfloat16() for _ in range(2))
        cu_q, cu_k = _int32((0, 2, 4, 6, 8)), _int32((0, 5000, 10_000, 15_000, 20_000))
        options: dict[str, Any] = {"mask": wl.Mask.causal(), "max_seqlen_q": 2, "max_seqlen_k": 20_000}
        attend = wl.softmax_attention if softmax else wl.hstu_attention
        attend(q, k, v, cu_q, cu_k, **options)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = attend(q, k, v, cu_q, cu_k, **options)
        for ends in ((2, 4, 6, 8), (300, 600, 900, 20_000), (2, 12_000, 12_002, 19_000)):
            cu_k.copy_(_int32((0, *ends)))
            captured.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            if not torch.equal(captured, attend(q, k, v, cu_q, cu_k, **options)):
                return _same(False, "a replayed graph differs from the call")
    return _same(True, "")


def nan_stays_in_its_sequence() -> Verdict:
    for softmax in (False, True):
        q, k, v = _batch(torch.bfloat16)
        clean = _attend(softmax, [q, k, v], QUERIES, KEYS, max(KEYS)).split(QUERIES)
        for tensor, lengths in ((q, QUERIES), (k, KEYS), (v, KEYS)):
            dirty = [x.clone() if x is tensor else x for x in (q, k, v)]
            next(x for x, y in zip(dirty, (q, k, v), strict=True) if y is tensor).split(lengths)[0].fill_(math.nan)
            found = _attend(softmax, dirty, QUERIES, KEYS, max(KEYS)).split(QUERIES)
            if not all(torch.equal(a, b) for a, b in zip(clean[1:], found[1:], strict=True)):
                return _same(False, "a NaN reached another sequence")
            if not torch.isnan(found[0]).all():
                return _same(False, "a NaN in a visible row did not reach the result")
        # A NaN query row reaches its own row and head only, though heads share tiles.
        dirty_q = q.clone()
        dirty_q[1, 2] = math.nan
        found_0 = _attend(softmax, [dirty_q, k, v], QUERIES, KEYS, max(KEYS)).split(QUERIES)[0]
        others = torch.ones(3, 4, dtype=torch.bool, device=DEVICE)
        others[1, 2] = False
        if not torch.equal(found_0[others], clean[0][others]) or not torch.isnan(found_0[1, 2]).all():
            return _same(False, "a NaN query row reached other rows, or not its own")
    return _same(True, "")


def explain() -> Verdict:
    shapes = ((1, 1, 4, 64), (1, 8192, 2, 64), (1, 8192, 2, 64))
    told = wl.explain(*shapes, op="softmax", mask=wl.Mask.causal(), device=DEVICE)
    split = told.get("split", {})
    launch = split.get("launches", [{}])[0]
    whole = split.get("packed_heads") == 2 and launch.get("chunks") == 32 and launch.get("splits", 0) > 1
    return _same(bool(whole) and told["scratch_bytes"] >= split["parts_bytes"] > 0, f"{told}")


SPLIT: dict[str, Callable[[], Verdict]] = {name: globals()[name.replace("-", "_")] for name in SPLIT_CHECKS}
