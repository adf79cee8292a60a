"""The engine and every schedule against simulate_reference.py, over random parameters, ties in both orders."""

from __future__ import annotations

import pytest
import simulate_reference
import warploom as wl
from hypothesis import given
from hypothesis import strategies as st

GEMM = st.fixed_dictionaries(
    {
        "scheme": st.sampled_from(["sync", "register", "cp_async", "specialized"]),
        "k": st.integers(1, 1200),
        "tiles": st.integers(1, 6),
        "consumers": st.integers(1, 2),
        "stages": st.integers(1, 9),
        "producer": st.sampled_from(["tma", "cp_async"]),
        "latency": st.integers(0, 3000),
        "bandwidth": st.integers(8, 300),
        "issue_cp": st.integers(0, 2000),
        "issue_tma": st.integers(0, 60),
        "register_copy": st.integers(0, 400),
        "epilogue_scale": st.integers(0, 9),
        "tensor_rate": st.integers(700, 9000),
    }
)
ATTENTION = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(["serial", "inter", "intra", "both"]),
        "blocks": st.integers(1, 40),
        "tensor_rate": st.integers(700, 9000),
        "exp_rate": st.integers(1, 64),
        "fma_rate": st.integers(8, 512),
    }
)


def same(kind, parameters, reverse, until, width):
    expected = getattr(simulate_reference, kind)(parameters, reverse)
    found = wl.simulate(kind, reverse_ties=reverse, until=until, width=width, **parameters)
    assert found.makespan == expected.makespan
    for name, lane in found.intervals.items():
        log = expected.log.get(name, [])
        assert list(zip(lane.start, lane.end, lane.tag, strict=True)) == log
        assert found.busy[name] == sum(end - start for start, end, _ in log)
        assert found.rows[name] == simulate_reference.row(log, until or expected.makespan, width)
        assert found.utilisation[name] == pytest.approx(100 * found.busy[name] / expected.makespan)


@given(GEMM, st.booleans(), st.none() | st.integers(1, 30000), st.integers(1, 90))
def test_gemm_is_what_the_rules_say(parameters, reverse, until, width):
    same("gemm", parameters, reverse, until, width)


@given(ATTENTION, st.booleans(), st.none() | st.integers(1, 30000), st.integers(1, 90))
def test_attention_is_what_the_rules_say(parameters, reverse, until, width):
    same("attention", parameters, reverse, until, width)


def test_the_reference_gives_the_published_makespans():
    plain = {
        "scheme": "specialized",
        "k": 4096,
        "tiles": 1,
        "consumers": 1,
        "stages": 4,
        "producer": "tma",
        "latency": 700,
        "bandwidth": 64,
        "issue_cp": 100,
        "issue_tma": 10,
        "register_copy": 192,
        "epilogue_scale": 1,
        "tensor_rate": 4096,
    }
    assert simulate_reference.gemm(plain).makespan == 68294
    assert simulate_reference.gemm(plain | {"scheme": "register"}).makespan == 114944
    assert simulate_reference.gemm(plain | {"k": 256, "tiles": 8, "consumers": 2}).makespan == 35526
    h100 = {"variant": "inter", "blocks": 32, "tensor_rate": 4096, "exp_rate": 16, "fma_rate": 128}
    assert simulate_reference.attention(h100).makespan == 33280
