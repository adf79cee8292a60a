"""What happens to single values: the silu tail, NaN, infinities, and bits that must repeat."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import warploom as wl
from hypothesis import given
from hypothesis import strategies as st
from problems import TORCH_DTYPES, Caller, problems
from reference import Bias, Results, visible

# --- the tail of silu -------------------------------------------------------------------------------------------------


def _silu(z: float) -> float:
    return z / (1 + np.exp(-z))


def _slope(z: float) -> float:
    sigmoid = 1 / (1 + np.exp(-z))
    return float(sigmoid * (1 + z * (1 - sigmoid)))


TAIL = [(dtype, z) for dtype in ("float32", "bfloat16") for z in (-1.0, -4, -8, -10.5, -12, -15, -18, -20.5, -23, -25)]
TAIL += [("float16", z) for z in (-1.0, -4.0, -8.0, -10.5, -12.0)]


@pytest.mark.parametrize(("dtype", "z"), TAIL)
def test_rows_whose_scores_all_equal_z_are_within_5e_3(dtype, z):
    """Out and every gradient down to z = -25 (float16: -12, beyond that its values are subnormal)."""
    length, dim = 40, 16
    # q.k is exact in every type: one coordinate of k is 1, q holds z there, and the other gradients see the other ones.
    q, k = torch.zeros(length, 1, dim), torch.zeros(length, 1, dim)
    q[..., 0], k[..., 0] = z, 1.0
    v = torch.ones(length, 1, dim)
    dout = torch.ones(length, 1, dim)
    tensors = [x.to(TORCH_DTYPES[dtype]) for x in (q, k, v, dout)]
    cu = torch.tensor([0, length], dtype=torch.int32)
    # A large 1/divisor keeps the results inside the 16-bit types' normal range.
    divisor = 1.0 / 64
    call = {"mask": wl.Mask.full(), "alpha": 1.0, "divisor": divisor}
    out = wl.hstu_attention(*tensors[:3], cu, **call)
    dq, dk, dv, _ = wl.hstu_attention_backward(tensors[3], *tensors[:3], cu, **call)
    n = 1 / divisor
    dp = n * dim
    expected = {
        "out": (out, n * length * _silu(z)),
        "dq": (dq[..., 0], length * dp * _slope(z)),
        "dk": (dk[..., 0], length * dp * _slope(z) * z),
        "dv": (dv, n * length * _silu(z)),
    }
    for name, (actual, value) in expected.items():
        error = (actual.double() - value).abs().max().item() / abs(value)
        assert error < 5e-3, f"{name}: relative error {error:.2e}"


# --- NaN and infinities ----------------------------------------------------------------------------------------------


def _poison(problem: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """(places in q, places in k) that hold NaN, and the problem changed."""
    places = []
    for x in (problem.q, problem.k):
        bad = rng.random(x.shape[:2]) < 0.15
        x[bad] = np.nan
        places.append(bad)
    return places[0], places[1]


@given(problems(biases=False), st.integers(0, 2**32 - 1))
def test_nan_reaches_exactly_the_outputs_that_depend_on_it(problem, seed):
    """A row of out depends on its q, where it sees anything, and on every k it sees."""
    bad_q, bad_k = _poison(problem, np.random.default_rng(seed))
    caller = Caller(problem)
    positional, keywords = caller.positional(), caller.keywords()
    lse = None
    if problem.op == "hstu":
        out = wl.hstu_attention(**positional, **keywords)
    else:
        out, lse = wl.softmax_attention(**positional, **keywords, return_lse=True)
    nan = np.isnan(caller.jagged(out)).any(axis=2)
    expected = np.zeros_like(nan)
    group = problem.heads // problem.k.shape[1]
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(problem.slots_q, problem.slots_k, strict=True)):
        lq = slot_q if problem.used_q is None else problem.used_q[b]
        lk = slot_k if problem.used_k is None else problem.used_k[b]
        if lq:
            see = np.broadcast_to(visible(problem, b, lq, lk, first_q), (problem.heads, lq, lk))
            keys = bad_k[first_k : first_k + lk].T.repeat(group, axis=0)[:, None, :]
            own = bad_q[first_q : first_q + lq].T & see.any(axis=2)
            expected[first_q : first_q + lq] = (own | (see & keys).any(axis=2)).T
        first_q, first_k = first_q + slot_q, first_k + slot_k
    assert np.array_equal(nan, expected)
    if lse is not None:
        assert np.array_equal(np.isnan(caller.jagged_lse(lse)), expected.T)


@given(problems(), st.sampled_from([np.nan, np.inf]))
def test_what_is_not_visible_is_not_read(problem, poison):
    """NaN or Inf in rows beyond seqused, in rows of nobody and in the gaps of strided tensors changes no bit of a
    result."""
    clean = Caller(problem, strided=True).run()
    for name, slots, used in (("q", problem.slots_q, problem.used_q), ("k", problem.slots_k, problem.used_k)):
        absent = np.ones(getattr(problem, name).shape[0], bool)
        first = 0
        for slot, length in zip(slots, slots if used is None else used, strict=True):
            absent[first : first + length] = False
            first += slot
        for field in ("q", "dout") if name == "q" else ("k", "v"):
            getattr(problem, field)[absent] = poison
    _assert_same_bits(clean, Caller(problem, strided=True).run())


@given(problems(biases=False), st.booleans())
def test_bias_outside_the_visible_area_is_not_read(problem, per_head):
    hypothesis.assume(problem.used_q is None and problem.used_k is None and problem.slots_q == problem.slots_k)
    longest = max(problem.slots_k, default=0)
    heads = problem.heads if per_head or problem.intervals is not None else 1
    values = np.random.default_rng(0).standard_normal((len(problem.slots_k), heads, longest, longest))
    poisoned = np.full_like(values, np.nan)
    first = 0
    for b, length in enumerate(problem.slots_k):
        see = np.broadcast_to(visible(problem, b, length, length, first), (heads, length, length))
        poisoned[b, :, :length, :length][see] = values[b, :, :length, :length][see]
        first += length
    results = []
    for array in (values, poisoned):
        problem.bias = Bias("dense", "k", values=array.astype(np.float32))
        results.append(Caller(problem).run(deterministic=True))
    _assert_same_bits(*results)


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_rows_that_see_nothing_of_a_tile_get_no_bias_gradient_beside_rows_that_see_all_of_it(operator):
    # Of each 32 rows the first 24 see the first half of the keys, the last 8 the second half and nothing else.
    length, heads = 128, 2
    q, k, v = torch.randn(3, length, heads, 16, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, length])
    half = (torch.arange(length) % 32 >= 24).int() * 64
    mask = wl.IntervalMask(torch.stack([half, half + 64], -1)[None, :, None].contiguous())
    hidden = (torch.arange(length) // 64 * 64)[None, :] != half[:, None]
    dense = torch.randn(1, heads, length, length, generator=torch.Generator().manual_seed(1)).requires_grad_()
    operator(q, k, v, offsets, mask=mask, bias=dense).square().sum().backward()
    assert (dense.grad[0][:, hidden] == 0).all()

    # The same bias by position: its table's gradient is the dense one's, summed along diagonals.
    table = torch.randn(heads, length, generator=torch.Generator().manual_seed(2)).requires_grad_()
    distance = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
    operator(q, k, v, offsets, mask=mask, bias=wl.BucketedBias(table)).square().sum().backward()
    gathered = table.detach()[None, :, distance].requires_grad_()
    operator(q, k, v, offsets, mask=mask, bias=gathered).square().sum().backward()
    expected = torch.zeros(heads, length).index_add_(1, distance.flatten(), gathered.grad[0].flatten(1))
    torch.testing.assert_close(table.grad, expected, rtol=1e-4, atol=1e-5)


def test_masked_infinities_do_not_become_nan():
    """A masked score never becomes inf * 0."""
    for operator, sign in ((o, s) for o in (wl.hstu_attention, wl.softmax_attention) for s in (1, -1)):
        q = torch.ones(4, 1, 8)
        k = q.clone()
        k[3] = sign * float("inf")
        out = operator(q, k, q, torch.tensor([0, 4]), mask=wl.Mask.causal())
        assert torch.isfinite(out[:3]).all()


def test_float16_saturates_no_earlier_than_out_itself():
    """Scores beyond 65504 are fine as long as out is not beyond it."""
    q = torch.full((2, 1, 8), 200.0, dtype=torch.float16)
    v = torch.full((2, 1, 8), 0.5, dtype=torch.float16)
    out = wl.hstu_attention(q, q, v, torch.tensor([0, 2]), alpha=1.0, divisor=1000.0, mask=wl.Mask.full())
    assert torch.allclose(out.float(), torch.full((2, 1, 8), 320000.0 * 2 * 0.5 / 1000), rtol=1e-3)


# --- bits that repeat -------------------------------------------------------------------------------------------------


def _assert_same_bits(first: Results, second: Results) -> None:
    for name in ("out", "lse", "dq", "dk", "dv", "dbias", "dposition", "dtime"):
        one, two = getattr(first, name), getattr(second, name)
        if one is None:
            assert two is None
        else:
            assert np.array_equal(one, two, equal_nan=True), f"{name} differs"


@given(problems())
def test_results_do_not_depend_on_the_number_of_threads(problem):
    caller = Caller(problem)
    before = wl.get_num_threads()
    try:
        wl.set_num_threads(1)
        one = caller.run(deterministic=True)
        wl.set_num_threads(3)
        _assert_same_bits(one, caller.run(deterministic=True))
    finally:
        wl.set_num_threads(before)


@given(problems(biases=False))
def test_a_sequence_does_not_depend_on_its_batch(problem):
    """With a divisor, out and the gradients of q, k, v of a sequence are the same bits alone and in a batch."""
    if problem.dense or len(problem.slots_q) < 2:
        return
    if problem.op == "hstu" and problem.divisor is None:
        problem.divisor = 3.0
    whole = Caller(problem).run(deterministic=True, max_seqlen_q=1000, max_seqlen_k=2000)
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(problem.slots_q, problem.slots_k, strict=True)):
        rows, columns = slice(first_q, first_q + slot_q), slice(first_k, first_k + slot_k)
        first_q, first_k = rows.stop, columns.stop

        def only(values: Any, b: int = b) -> Any:
            return [values[b]] if isinstance(values, list) else values

        changes: dict[str, Any] = {
            "q": problem.q[rows],
            "dout": problem.dout[rows],
            "k": problem.k[columns],
            "v": problem.v[columns],
            "slots_q": [slot_q],
            "slots_k": [slot_k],
            "used_q": only(problem.used_q),
            "used_k": only(problem.used_k),
            "contexts": only(problem.contexts),
            "targets": only(problem.targets),
        }
        if problem.intervals is not None:
            changes["intervals"] = problem.intervals[:, rows]
        if isinstance(problem.divisor, np.ndarray):
            changes["divisor"] = problem.divisor[rows]
        alone = Caller(type(problem)(**{**vars(problem), **changes})).run(deterministic=True)
        for name, part in (("out", rows), ("dq", rows), ("dk", columns), ("dv", columns)):
            assert np.array_equal(getattr(whole, name)[part], getattr(alone, name)), f"{name} of sequence {b}"
        if whole.lse is not None and alone.lse is not None:
            assert np.array_equal(whole.lse[:, rows], alone.lse)


def test_calls_from_several_threads_give_the_same_bits():
    torch.manual_seed(0)
    q, k, v = (torch.randn(300, 2, 32) for _ in range(3))
    cu = torch.tensor([0, 100, 300], dtype=torch.int32)
    dout = torch.randn(300, 2, 32)
    bias = wl.BucketedBias(position=torch.randn(1, 50))
    expected = wl.hstu_attention_backward(dout, q, k, v, cu, bias=bias, deterministic=True)
    failures = []

    def call() -> None:
        for _ in range(20):
            gradients = wl.hstu_attention_backward(dout, q, k, v, cu, bias=bias, deterministic=True)
            pairs = zip((*gradients[:3], gradients.dbias[0]), (*expected[:3], expected.dbias[0]), strict=True)
            if not all(torch.equal(one, two) for one, two in pairs):
                failures.append("differs")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_the_same_bits():
    """Data loaders fork: the threads of the parent's pool do not exist in the child."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2000, 2, 32)).astype(np.float32)
    cu = np.array([0, 1000, 2000])
    expected = wl.hstu_attention(q, q, q, cu)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs ends with a signal, not with the test run
        os._exit(0 if np.array_equal(wl.hstu_attention(q, q, q, cu), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
