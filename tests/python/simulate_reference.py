"""The rules of the pipeline model (docs/simulator.md), slow and obvious: executors are generators that yield wishes.

Written from the rules, not from src/sim: no event ever carries more than what a rule names.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any


class Sm:
    """One run: resources that serve in order of request, barriers that count, executors that are generators."""

    def __init__(self, reverse: bool = False) -> None:
        self.now = 0
        self.sign = -1 if reverse else 1
        self.sequence = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.free_at: dict[str, int] = {}
        self.log: dict[str, list[tuple[int, int, str]]] = {}
        self.count: dict[Any, int] = {}
        self.waiting: dict[Any, list[tuple[int, Iterator[Any]]]] = {}
        self.makespan = 0
        self.unfinished = 0

    def at(self, time: int, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (time, self.sign * self.sequence, action))

    def reserve(self, resource: str, cycles: int, tag: str) -> int:
        start = max(self.now, self.free_at.get(resource, 0))
        self.free_at[resource] = start + cycles
        if cycles > 0:
            self.log.setdefault(resource, []).append((start, start + cycles, tag))
        return start + cycles

    def asynchronous(self, resource: str, cycles: int, tag: str, latency: int, barrier: Any) -> None:
        self.at(self.reserve(resource, cycles, tag) + latency, lambda: self.arrive(barrier))

    def arrive(self, barrier: Any) -> None:
        self.count[barrier] = self.count.get(barrier, 0) + 1
        still = []
        for threshold, executor in self.waiting.get(barrier, []):
            if self.count[barrier] >= threshold:
                self.at(self.now, lambda executor=executor: self.resume(executor))
            else:
                still.append((threshold, executor))
        self.waiting[barrier] = still

    def resume(self, executor: Iterator[Any]) -> None:
        for wish in executor:
            if wish[0] == "until":
                self.at(wish[1], lambda: self.resume(executor))
                return
            _, barrier, threshold = wish
            if self.count.get(barrier, 0) < threshold:
                self.waiting.setdefault(barrier, []).append((threshold, executor))
                return
        self.unfinished -= 1
        self.makespan = max(self.makespan, self.now)

    def use(self, resource: str, cycles: int, tag: str) -> Iterator[Any]:
        yield ("until", self.reserve(resource, cycles, tag))

    def busy(self, cycles: int) -> Iterator[Any]:
        yield ("until", self.now + cycles)

    def run(self, *executors: Iterator[Any]) -> Sm:
        for executor in executors:
            self.unfinished += 1
            self.at(0, lambda executor=executor: self.resume(executor))
        while self.queue:
            self.now, _, action = heapq.heappop(self.queue)
            action()
        assert self.unfinished == 0, "deadlock"
        return self


def gemm(p: dict[str, Any], reverse: bool = False) -> Sm:
    """p: scheme, k, tiles, consumers, stages, producer, latency, bandwidth, issue_cp, issue_tma, register_copy,
    epilogue_scale, tensor_rate; every quotient rounded up."""
    sm = Sm(reverse)
    nk = -(-p["k"] // 64)
    transfer = -((128 + 256) * 64 * 2 // -p["bandwidth"])
    mma = -(2 * 128 * 256 * 64 // -p["tensor_rate"])
    drain = -(128 * 256 * 2 // -p["bandwidth"])
    scale, stages, tiles = p["epilogue_scale"], p["stages"], p["tiles"]

    def load(issue, barrier):
        yield from sm.busy(issue)
        sm.asynchronous("MEM", transfer, "L", p["latency"], barrier)

    def epilogue():
        yield from sm.use("FMA", 256 * scale, "E")
        yield from sm.busy(drain * scale)

    def synchronous():
        for n in range(tiles):
            for i in range(nk):
                yield from load(p["issue_cp"], "full")
                yield ("wait", "full", n * nk + i + 1)
                yield from sm.use("TC", mma, "M")
            yield from epilogue()

    def register():
        for n in range(tiles):
            yield from load(p["issue_cp"], "full")
            yield ("wait", "full", n * nk + 1)
            yield from sm.busy(p["register_copy"])
            for i in range(nk):
                if i + 1 < nk:
                    yield from load(p["issue_cp"], "full")
                yield from sm.use("TC", mma, "M")
                if i + 1 < nk:
                    yield ("wait", "full", n * nk + i + 2)
                    yield from sm.busy(p["register_copy"])
            yield from epilogue()

    def cp_async():
        for n in range(tiles):
            for _ in range(min(stages - 1, nk)):
                yield from load(p["issue_cp"], "full")
            for i in range(nk):
                if i + stages - 1 < nk:
                    yield from load(p["issue_cp"], "full")
                yield ("wait", "full", n * nk + i + 1)
                yield from sm.use("TC", mma, "M")
            yield from epilogue()

    def producer():
        for i in range(tiles * nk):
            yield ("wait", ("empty", i % stages), i // stages)
            yield from load(p["issue_tma"] if p["producer"] == "tma" else p["issue_cp"], ("full", i % stages))

    def consumer(c):
        for tile in range(c, tiles, p["consumers"]):
            yield ("wait", "turn", tile)
            for i in range(tile * nk, (tile + 1) * nk):
                yield ("wait", ("full", i % stages), i // stages + 1)
                yield from sm.use("TC", mma, "Mm"[c] if c < 2 else "?")
                sm.arrive(("empty", i % stages))
            sm.arrive("turn")
            yield from epilogue()

    if p["scheme"] == "specialized":
        return sm.run(producer(), *(consumer(c) for c in range(p["consumers"])))
    return sm.run({"sync": synchronous, "register": register, "cp_async": cp_async}[p["scheme"]]())


def attention(p: dict[str, Any], reverse: bool = False) -> Sm:
    """p: variant, blocks, tensor_rate, exp_rate, fma_rate."""
    sm = Sm(reverse)
    product = -(2 * 64 * 128 * 128 // -p["tensor_rate"])
    exp, other = -(64 * 128 // -p["exp_rate"]), -(4 * 64 * 128 // -p["fma_rate"])
    two = p["variant"] in ("inter", "both")
    shares = [p["blocks"] - p["blocks"] // 2, p["blocks"] // 2] if two else [p["blocks"]]

    def elementwise():
        yield from sm.use("SFU", exp, "x")
        yield from sm.use("FMA", other, "o")

    def in_turn(w, n):
        for j in range(n):
            if two:
                yield ("wait", ("turn", w), j + w)
            yield from sm.use("TC", product, "AB"[w])
            if two:
                sm.arrive(("turn", 1 - w))
            yield from elementwise()
            if two:
                yield ("wait", ("turn", w), j + 1 + w)
            yield from sm.use("TC", product, "AB"[w])
        if two:
            sm.arrive(("turn", 1 - w))

    def two_stage(w, n):
        if n > 0:
            sm.asynchronous("TC", product, "AB"[w], 0, ("ready", w))
        for j in range(n):
            yield ("wait", ("ready", w), j + 1)
            if j + 1 < n:
                sm.asynchronous("TC", product, "AB"[w], 0, ("ready", w))
            yield from elementwise()
            yield from sm.use("TC", product, "AB"[w])

    body = in_turn if p["variant"] in ("serial", "inter") else two_stage
    return sm.run(*(body(w, n) for w, n in enumerate(shares)))


def row(log: list[tuple[int, int, str]], until: int, width: int) -> str:
    """Section 7.5: character c is the tag of the interval that holds (c + 1/2) * until / width."""
    letters = []
    for c in range(width):
        holding = [tag for s, e, tag in log if 2 * width * s <= (2 * c + 1) * until < 2 * width * e]
        letters.append(holding[0] if holding else ".")
    return "".join(letters)
