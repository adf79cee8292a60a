"""Both operators against the float64 reference, over everything that a call can ask for."""

from __future__ import annotations

import accuracy
from hypothesis import given
from hypothesis import strategies as st
from problems import Caller, problems


@given(problems(ops=("hstu",)), st.sampled_from(["torch", "numpy"]), st.booleans())
def test_hstu_forward_and_backward_are_as_accurate_as_the_rule_asks(problem, kind, strided):
    accuracy.check(problem, Caller(problem, kind, strided).run())


@given(problems(ops=("softmax",)), st.sampled_from(["torch", "numpy"]), st.booleans())
def test_softmax_forward_and_backward_are_as_accurate_as_the_rule_asks(problem, kind, strided):
    accuracy.check(problem, Caller(problem, kind, strided).run())
