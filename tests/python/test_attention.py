"""Both operators against the float64 reference, over everything that a call can ask for."""

from __future__ import annotations

import accuracy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import Caller, problems
from reference import Bias, Problem

LONG = {
    "causal": {"right": 0},
    "window, contexts and targets": {"right": 0, "left": 100, "contexts": [4, 3], "targets": [60, 7], "group": 8},
    "both sides": {"left": 130, "right": 70},
}


@pytest.mark.parametrize("op", ["hstu", "softmax"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mask", LONG)
def test_sequences_of_many_tiles_are_as_accurate_as_the_rule_asks(op, dtype, mask):
    """Longer than every tile, with lengths that fit none."""
    rng = np.random.default_rng(0)
    slots_q, slots_k = [611, 77], [709, 131]

    def normal(rows: int, heads: int, dim: int) -> np.ndarray:
        return accuracy.rounded(rng.standard_normal((rows, heads, dim)), dtype)

    tensors = (normal(688, 2, 64), normal(840, 1, 64), normal(840, 1, 48), normal(688, 2, 48))
    bias = Bias("bucketed", position=rng.standard_normal((2, 300)).astype(np.float32))
    problem = Problem(op, dtype, slots_q, slots_k, *tensors, bias=bias, **LONG[mask])
    accuracy.check(problem, Caller(problem, strided=True).run())


@given(problems(ops=("hstu",)), st.sampled_from(["torch", "numpy"]), st.booleans())
def test_hstu_forward_and_backward_are_as_accurate_as_the_rule_asks(problem, kind, strided):
    accuracy.check(problem, Caller(problem, kind, strided).run())


@given(problems(ops=("softmax",)), st.sampled_from(["torch", "numpy"]), st.booleans())
def test_softmax_forward_and_backward_are_as_accurate_as_the_rule_asks(problem, kind, strided):
    accuracy.check(problem, Caller(problem, kind, strided).run())
