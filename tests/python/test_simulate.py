"""The pipeline model from Python: figures of the published scenarios, arrays, pictures, programs, sweeps, errors."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import warploom as wl
from warploom import _simulate


@pytest.mark.parametrize(
    ("parameters", "makespan"),
    [
        ({"scheme": "sync"}, 167168),
        ({"scheme": "register"}, 114944),
        ({"scheme": "cp_async", "stages": 3}, 74484),
        ({"scheme": "specialized"}, 68294),
        ({"scheme": "specialized", "producer": "cp_async", "issue_cp": 800}, 69084),
        ({"k": 256, "tiles": 8, "consumers": 2}, 35526),
        ({"bandwidth": np.float64(32)}, 102342),
    ],
)
def test_makespans_of_gemm(parameters, makespan):
    assert wl.simulate("gemm", **parameters).makespan == makespan
    assert wl.simulate("gemm", reverse_ties=True, **parameters).makespan == makespan


@pytest.mark.parametrize(
    ("variant", "makespan"), [("serial", 57344), ("inter", 33280), ("intra", 41472), ("both", 33024)]
)
def test_makespans_of_attention(variant, makespan):
    assert wl.simulate("attention", variant=variant).makespan == makespan


def test_intervals_are_arrays_that_add_up():
    timeline = wl.simulate("gemm", scheme="cp_async", stages=3)
    lane = timeline.intervals["TC"]
    assert lane.start.dtype == np.int64
    assert int((lane.end - lane.start).sum()) == timeline.busy["TC"] == 65536
    assert (lane.start[1:] >= lane.end[:-1]).all()
    assert lane.tag == "M" * 64
    assert timeline.executors == ["loop"]
    assert timeline.utilisation["TC"] == pytest.approx(100 * 65536 / timeline.makespan)
    assert timeline.closed_form == {"formula": "I + X + L + nk*C + (nk - S)*I + E", "makespan": timeline.makespan}


def test_intervals_without_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert list(wl.simulate("gemm", k=64).intervals["TC"].start) == [1478]


def test_experiments_carry_their_claims_and_their_window():
    timeline = wl.simulate("timeline-attention")
    assert all(claim["agrees"] for claim in timeline.claims)
    assert timeline.rows["TC"].startswith("A" * 6 + "B" * 6 + "...")
    assert len(timeline.rows["TC"]) == 72
    assert "optimistic" in str(timeline)


def test_svg_is_one_well_formed_document_and_the_notebook_display():
    timeline = wl.simulate("attention", variant="inter", until=6000)
    root = ElementTree.fromstring(timeline.svg())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert timeline._repr_svg_() == timeline.svg(6000)
    assert "turn[1]" in timeline.svg(6000)


def test_perfetto_is_json_with_arrows():
    events = json.loads(wl.simulate("gemm", k=512).perfetto())["traceEvents"]
    assert {"X", "M", "s", "f"} == {event["ph"] for event in events}


def test_plot():
    pytest.importorskip("matplotlib").use("Agg")
    axes = wl.simulate("attention", variant="inter").plot(until=6000)
    assert axes.get_xlim() == (0, 6000)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FMA", "SFU", "TC"]
    assert wl.simulate_sweep("stages=2..4", "latency=300,700").plot().get_xlabel() == "stages"


def test_plot_without_matplotlib_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    with pytest.raises(RuntimeError, match="pip install matplotlib, or use svg"):
        wl.simulate("gemm", k=64).plot()


def test_a_program_of_ones_own_is_the_synchronous_loop():
    program = wl.Program(barriers=["full"], legend={"L": "load"})
    loop = program.executor("loop")
    for i in range(64):
        loop.busy(100).async_("MEM", 768, "L", 700, "full").wait("full", i + 1).use("TC", 1024, "M")
    loop.use("FMA", 256, "E").busy(1024)
    assert wl.simulate(program).makespan == wl.simulate("gemm", scheme="sync").makespan
    assert wl.simulate(program, machine="a100").microseconds == pytest.approx(167168 / 1410)


def test_a_deadlock_says_who_waits_for_what():
    program = wl.Program(barriers=["a", "b"])
    program.executor("left").wait("a", 1).arrive("b")
    program.executor("right").busy(7).wait("b", 1).arrive("a")
    with pytest.raises(RuntimeError, match=r"(?s)left waits for a >= 1.*cycle 0.*right waits for b >= 1.*cycle 7"):
        wl.simulate(program)


def test_sweep_keeps_refused_points_empty():
    sweep = wl.simulate_sweep("stages=0..2", "latency=300,700", scheme="cp_async", metric="makespan")
    assert sweep.values == [
        [None, wl.simulate(scheme="cp_async", stages=1, latency=300).makespan, 74228],
        [None, 167168, 85348],
    ]
    assert sweep.complete
    assert "stages = 0" in sweep.refusals[0]
    refused = wl.simulate_sweep("k=64,128", "stages=0,1", metric="makespan")
    assert refused.values[0] == [None, None]
    with pytest.raises(ValueError, match="stages = 0"):
        wl.simulate_sweep("k=64,128", "stages=0,-1")


def test_an_interrupted_sweep_keeps_the_rows_that_are_done(monkeypatch):
    ask, rows = _simulate._ask, []

    def interrupted(request):
        if request["what"] == "sweep":
            rows.append(request)
            if len(rows) == 3:
                raise KeyboardInterrupt
        return ask(request)

    monkeypatch.setattr(_simulate, "_ask", interrupted)
    sweep = wl.simulate_sweep("stages=2..4", "latency=300..3000:300")
    assert not sweep.complete
    assert len(sweep.values) == 2


def test_design_and_work():
    designs = wl.simulate_design(k=512, tile_m=[128], tile_n=[256], stages=[4, 5], consumers=[2])
    assert designs[0]["feasible"]
    assert designs[0]["consumer_registers"] == 232
    assert any("shared memory" in design.get("reason", "") for design in designs)
    schedules = {(s["order"], s["assignment"]): s for s in wl.simulate_work(length=2048, sms=66)}
    assert schedules["longest-first", "dynamic"]["makespan"] <= schedules["in-order", "static"]["makespan"]


def test_shared_memory_is_slower_than_the_l2_rate():
    assert wl.simulate("shared", sms=132, k=256).makespan > 2 * wl.simulate("gemm", k=256).makespan


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: wl.simulate("gemm", stages=0), ValueError, "stages = 0"),
        (lambda: wl.simulate("gemm", bandwidth=-1), ValueError, "bandwidth = -1"),
        (lambda: wl.simulate("gemm", bandwidth=float("nan")), ValueError, "cannot be sent"),
        (lambda: wl.simulate("gemm", stagse=3), ValueError, "'stagse' is not a parameter"),
        (lambda: wl.simulate("gemm", machine="v100"), ValueError, "h100, h200, a100, b200"),
        (lambda: wl.simulate("gemm", k=[1]), TypeError, "k"),
        (lambda: wl.simulate("gem"), ValueError, "near it are"),
        (lambda: wl.simulate("specialized", k=3), ValueError, "takes no parameters"),
        (lambda: wl.simulate(7), TypeError, "what = 7"),
        (lambda: wl.simulate("gemm", until=0), ValueError, "until = 0"),
        (lambda: wl.simulate("gemm", width=0), ValueError, "width = 0"),
        (lambda: wl.simulate("gemm", k=object()), TypeError, "cannot be sent"),
        (lambda: wl.simulate_sweep("stages"), ValueError, "NAME=VALUES"),
        (lambda: wl.simulate_sweep("stages=1..2", "stages=1..2"), ValueError, "given twice"),
        (lambda: wl.simulate_design("conv"), ValueError, "kind = 'conv'"),
        (lambda: wl.simulate_work(sms=0), ValueError, "sms = 0"),
    ],
)
def test_bad_input_names_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_machine_files(tmp_path):
    machine = wl._library.json_text("warploom_simulate", b'{"what": "machine", "name": "h100"}')
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(machine | {"name": "mine", "latency": 1500}))
    assert wl.simulate("gemm", machine=path, scheme="sync").makespan == 167168 + 64 * 800
    del machine["latency"]
    path.write_text(json.dumps(machine))
    with pytest.raises(ValueError, match="lacks the field 'latency'"):
        wl.simulate("gemm", machine=path)
