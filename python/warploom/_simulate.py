"""The pipeline model: what a schedule of loads, products and elementwise work does on one SM.

    timeline = wl.simulate("gemm", scheme="cp_async", stages=3)
    timeline.makespan, timeline.utilisation["TC"]

A model, not a measurement: it says who waits for whom, not what a kernel reaches. Rules: docs/simulator.md. Times are
whole clock cycles of the SM.
"""

from __future__ import annotations

import array
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from . import _library

__all__ = [
    "Intervals",
    "Program",
    "Sweep",
    "Timeline",
    "simulate",
    "simulate_design",
    "simulate_sweep",
    "simulate_work",
]

_SCENARIOS = ("gemm", "attention", "shared")
_SHARED = ("sms", "total_bandwidth", "l2_hit")
# The colours of the SVG (src/sim/svg.cpp), so that plots read alike.
_COLOURS = {
    "M": "#f2a93b", "A": "#f2a93b", "m": "#6fbf73", "B": "#6fbf73", "L": "#6ea8fe", "d": "#8fa3c7", "E": "#c79bd9",
    "D": "#b99a86", "i": "#63c6c0", "T": "#f4a6b7", "x": "#ef7d77", "o": "#e3cf57", "R": "#9fd3e8", "Q": "#b3b8f2",
}  # fmt: skip


class Intervals(NamedTuple):
    """What one resource served, in order: request i held it over [start[i], end[i]) cycles."""

    start: Any  #: int64, a NumPy array where NumPy is installed, else array.array
    end: Any
    executor: Any  #: index into Timeline.executors
    tag: str  #: one letter a request


class Program:
    """Programs of your own: executors that run one operation after the other.

    ::

        program = wl.Program(barriers=["full"], legend={"L": "load", "M": "product"})
        loop = program.executor("loop")
        for i in range(8):
            loop.busy(100).async_("MEM", 768, "L", 700, "full").wait("full", i + 1).use("TC", 1024, "M")
        wl.simulate(program)

    ``resources``: names in place of TC, MEM, SFU, FMA. Executors start at cycle 0 in the order of their creation.
    """

    def __init__(
        self,
        barriers: Iterable[str] = (),
        resources: Iterable[str] | None = None,
        legend: Mapping[str, str] | None = None,
    ) -> None:
        self._document: dict[str, Any] = {"barriers": list(barriers), "executors": []}
        if resources is not None:
            self._document["resources"] = list(resources)
        if legend is not None:
            self._document["legend"] = dict(legend)

    def executor(self, name: str) -> Executor:
        """A new warp or warpgroup; append its operations to what is returned."""
        operations: list[list[Any]] = []
        self._document["executors"].append({"name": name, "program": operations})
        return Executor(operations)

    def to_json(self) -> str:
        """The file that ``warploom simulate program`` reads."""
        return json.dumps(self._document, indent=1)


class Executor:
    """The operations of one executor; every method appends one and returns the executor."""

    def __init__(self, operations: list[list[Any]]) -> None:
        self._operations = operations

    def use(self, resource: str, cycles: int, tag: str) -> Executor:
        """Reserve the resource and block until the work ends."""
        self._operations.append(["use", resource, cycles, tag])
        return self

    def async_(self, resource: str, cycles: int, tag: str, latency: int, barrier: str) -> Executor:
        """Reserve the resource and go on at once; the barrier gets one arrival `latency` cycles after the work ends."""
        self._operations.append(["async", resource, cycles, tag, latency, barrier])
        return self

    def busy(self, cycles: int, tag: str = "b") -> Executor:
        """Be occupied without holding a resource."""
        self._operations.append(["busy", cycles, tag])
        return self

    def wait(self, barrier: str, count: int) -> Executor:
        """Block until the barrier has had `count` arrivals in all."""
        self._operations.append(["wait", barrier, count])
        return self

    def arrive(self, barrier: str) -> Executor:
        self._operations.append(["arrive", barrier])
        return self


class Timeline:
    """The result of a run. In a notebook it shows itself as SVG."""

    makespan: int  #: cycles until the last executor ended
    microseconds: float
    utilisation: dict[str, float]  #: percent of the makespan, by resource
    busy: dict[str, int]  #: cycles, by resource
    events: int
    rows: dict[str, str]  #: the resources as rows of letters, '.' is idle
    intervals: dict[str, Intervals]
    executors: list[str]
    title: str
    notes: list[str]
    legend: dict[str, str]
    closed_form: dict[str, Any] | None  #: {"formula", "makespan"} where the published model gives one
    claims: list[dict[str, Any]]  #: of a named experiment: published figure, ours, whether they agree

    def __init__(self, request: dict[str, Any], answer: dict[str, Any]) -> None:
        self._request = request
        self.makespan = answer["makespan"]
        self.microseconds = answer["microseconds"]
        self.utilisation = answer["utilisation"]
        self.busy = answer["busy"]
        self.events = answer["events"]
        self.rows = answer["timeline"]
        self.intervals = {
            name: Intervals(_int64(lane["start"]), _int64(lane["end"]), _int64(lane["executor"]), lane["tag"])
            for name, lane in answer["intervals"].items()
        }
        self.executors = [executor["name"] for executor in answer["executors"]]
        self.title = answer["title"]
        self.notes = answer["notes"]
        self.legend = answer.get("legend", {})
        self.closed_form = answer.get("closed_form")
        self.claims = answer.get("claims", [])
        self._note: str = answer["note"]

    def svg(self, until: int | None = None) -> str:
        """Self-contained SVG with stalls, hover titles and both axes, of [0, until) cycles (None: the makespan)."""
        request = self._request | {"svg": True} | ({} if until is None else {"until": until})
        text: str = _ask(request)["svg"]
        return text

    def perfetto(self) -> str:
        """Trace JSON for ui.perfetto.dev, with an arrow from every arrival to the wait that it ended."""
        text: str = _ask(self._request | {"perfetto": True})["perfetto"]
        return text

    def plot(self, ax: Any = None, until: int | None = None) -> Any:
        """Draws the resources with matplotlib and returns the axes. RuntimeError without it (svg() needs none)."""
        try:
            from matplotlib import pyplot
            from matplotlib.patches import Patch
        except ImportError as error:
            raise RuntimeError("plot() needs matplotlib: pip install matplotlib, or use svg()") from error
        end = self.makespan if until is None else until
        lanes = [name for name, lane in self.intervals.items() if len(lane.tag) > 0]
        if ax is None:
            _, ax = pyplot.subplots(figsize=(12, 0.6 * len(lanes) + 1.4), layout="constrained")
        for row, name in enumerate(reversed(lanes)):
            lane = self.intervals[name]
            boxes = [(int(s), int(e) - int(s)) for s, e in zip(lane.start, lane.end, strict=True)]
            ax.broken_barh(boxes, (row - 0.4, 0.8), facecolors=[_COLOURS.get(tag, "#aab4c0") for tag in lane.tag])
        ax.set_yticks(range(len(lanes)), list(reversed(lanes)))
        ax.set_xlim(0, max(end, 1))
        ax.set_xlabel("cycles")
        ax.set_title(self.title)
        shown = sorted({tag for lane in self.intervals.values() for tag in lane.tag})
        handles = [Patch(color=_COLOURS.get(tag, "#aab4c0"), label=self.legend.get(tag, tag)) for tag in shown]
        ax.legend(handles=handles, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        return ax

    def _repr_svg_(self) -> str:
        return self.svg(self._request.get("until"))

    def __str__(self) -> str:
        width = max((len(name) for name in self.rows), default=0)
        lines = [f"{self.title}: {self.makespan} cycles"]
        for name, row in self.rows.items():
            lines.append(f"{name:{width}} {row.replace('.', '·')} {self.utilisation[name]:6.2f} %")
        return "\n".join([*lines, self._note])

    def __repr__(self) -> str:
        return f"<Timeline {self.title}: {self.makespan} cycles>"


class Sweep:
    """One figure over two parameters. ``values[y][x]``; None where a point is refused or was not reached."""

    x: tuple[str, list[str]]  #: name and values
    y: tuple[str, list[str]] | None
    metric: str
    values: list[list[float | None]]
    refusals: list[str]  #: why points were refused
    complete: bool  #: False after an interrupt

    def __init__(self, parts: list[dict[str, Any]], y: tuple[str, list[str]] | None, complete: bool) -> None:
        self.x = (parts[0]["x"]["name"], parts[0]["x"]["values"])
        self.y = y
        self.metric = parts[0]["metric"]
        self.values = [part["values"][0] for part in parts]
        self.refusals = list(dict.fromkeys(reason for part in parts for reason in part["refusals"]))
        self.complete = complete

    def plot(self, ax: Any = None) -> Any:
        """The heat map with matplotlib; returns the axes (``axes.figure.savefig("sweep.png")``)."""
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise RuntimeError("plot() needs matplotlib: pip install matplotlib") from error
        if ax is None:
            _, ax = pyplot.subplots(layout="constrained")
        image = ax.imshow([[float("nan") if v is None else v for v in row] for row in self.values], aspect="auto")
        ax.set_xticks(range(len(self.x[1])), self.x[1])
        ax.set_xlabel(self.x[0])
        if self.y is not None:
            ax.set_yticks(range(len(self.values)), self.y[1][: len(self.values)])
            ax.set_ylabel(self.y[0])
        ax.figure.colorbar(
            image, label=self.metric if self.metric == "makespan" else f"{self.metric} % busy (optimistic)"
        )
        return ax


def simulate(
    what: str | Program = "gemm",
    *,
    until: int | None = None,
    width: int = 72,
    reverse_ties: bool = False,
    **parameters: Any,
) -> Timeline:
    """Runs the pipeline model.

    what: "gemm", "attention", "shared" (SMs that share the GPU's memory), the name of an experiment
        (``warploom simulate`` lists them), or a Program.
    until, width: the end of Timeline.rows in cycles (None: the makespan) and their characters.
    reverse_ties: process simultaneous events in reverse order; no published figure changes.
    parameters: the switches of the command by their names, as in ``scheme="cp_async", stages=3, machine="b200"``;
        "shared" also takes sms, total_bandwidth (bytes per cycle of all SMs; 0: the machine's) and l2_hit (0..1);
        experiments take none, a Program only machine.

    ValueError names a parameter that is unknown or breaks a rule; RuntimeError reports a Program that deadlocks, with
    who waits for what, since when.
    """
    request: dict[str, Any] = {"width": width, "intervals": True, "reverse_ties": reverse_ties}
    if until is not None:
        request["until"] = until
    if isinstance(what, Program):
        request |= {"what": "program", "program": json.loads(what.to_json()), **parameters}
    elif not isinstance(what, str):
        raise TypeError(f"what = {what!r} must be a scenario's or experiment's name, or a Program")
    elif what in _SCENARIOS:
        own = {name: parameters.pop(name) for name in _SHARED if what == "shared" and name in parameters}
        request |= {"what": what, "parameters": _plain(parameters), **own}
    elif parameters:
        names = ", ".join(parameters)
        raise ValueError(f"the experiment '{what}' takes no parameters, not {names}; use gemm or attention")
    else:
        request |= {"what": "experiment", "name": what}
    return Timeline(request, _ask(request))


def simulate_experiments() -> list[dict[str, Any]]:
    """Every named experiment as the command's JSON has it: name, about, makespan, utilisation, claims, ..."""
    experiments: list[dict[str, Any]] = _ask({"what": "experiments"})["experiments"]
    return experiments


def simulate_report() -> str:
    """One self-contained HTML page: every named experiment beside the published figures, with its timeline."""
    html: str = _ask({"what": "report"})["html"]
    return html


def simulate_sweep(
    x: str, y: str | None = None, *, kind: str = "gemm", metric: str = "TC", threads: int = 0, **parameters: Any
) -> Sweep:
    """One figure of a scenario over one or two parameters, on all cores.

    x, y: "stages=2..8", "latency=300..3000:300" (step), "bandwidth=16..256*2" (factor) or "scheme=sync,cp_async".
    metric: "TC" or "MEM" (percent busy) or "makespan" (cycles). parameters: as in simulate().
    A KeyboardInterrupt keeps the rows that are done (Sweep.complete is False) unless there is none yet.
    """
    request = {"what": "sweep", "kind": kind, "metric": metric, "threads": threads, "x": x}
    base = _plain(parameters)
    if y is None:
        return Sweep([_ask(request | {"parameters": base})], None, True)
    name, values = _axis(y)
    if name in base or name == x.partition("=")[0].strip().replace("-", "_"):
        raise ValueError(f"{name} is given twice; take it once")
    rows: list[dict[str, Any] | str] = []  # an answer, or why no point of the row can run
    try:
        for value in values:
            try:
                rows.append(_ask(request | {"parameters": base | {name: value}}))
            except ValueError as error:
                rows.append(str(error))
    except KeyboardInterrupt:
        if all(isinstance(row, str) for row in rows):
            raise
    answers = [row for row in rows if not isinstance(row, str)]
    if not answers:
        raise ValueError(rows[0])
    empty = answers[0] | {"values": [[None] * len(answers[0]["x"]["values"])]}
    parts = [empty | {"refusals": [row]} if isinstance(row, str) else row for row in rows]
    return Sweep(parts, (name, values), len(rows) == len(values))


def simulate_design(kind: str = "gemm", **space: Any) -> list[dict[str, Any]]:
    """Every tile, stage count, role and register split for a problem: best first, infeasible ones last with the reason.

    kind "gemm": m, n, k, element_bytes and the lists tile_m, tile_n, tile_k, stages, consumers; kind "attention":
    length, batch, heads, head_dim and the lists keys, kv_stages; both: machine. Rules: docs/simulator.md.
    """
    designs: list[dict[str, Any]] = _ask({"what": "design", "kind": kind, **space})["designs"]
    return designs


def simulate_work(
    *, length: int = 4096, batch: int = 8, heads: int = 4, causal: bool = True, sms: int = 132, **parameters: Any
) -> list[dict[str, Any]]:
    """Attention's work items over SMs in four schedules (in-order or longest-first, static or dynamic): makespan and
    tail in cycles, and balance (mean busy time over makespan, percent). parameters: attention's, as in simulate()."""
    request = {"what": "work", "length": length, "batch": batch, "heads": heads, "causal": causal, "sms": sms}
    schedules: list[dict[str, Any]] = _ask(request | {"parameters": _plain(parameters)})["schedules"]
    return schedules


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them: paths become text, NumPy's numbers numbers."""
    plain: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        plain[name] = value.item() if hasattr(value, "item") else value
    return plain


def _axis(axis: str) -> tuple[str, list[str]]:
    """Name and values of an axis, read as the command reads them."""
    parsed = _ask({"what": "axis", "x": axis})
    return parsed["name"], parsed["values"]


def _ask(request: dict[str, Any]) -> Any:
    try:
        text = json.dumps(request, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"a parameter cannot be sent to the simulator: {error}") from error
    return _library.json_text("warploom_simulate", text.encode())


def _int64(values: list[int]) -> Any:
    try:
        import numpy
    except ImportError:
        return array.array("q", values)
    return numpy.asarray(values, dtype=numpy.int64)
