"""Score and mask functions that users write: against NumPy, traced and written, through torch, and their messages."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
import warploom as wl
from accuracy import check
from hypothesis import given
from hypothesis import strategies as st
from problems import Caller, problems
from warploom import functions as F

# --- score functions on whole problems --------------------------------------------------------------------------------


def sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


SCORES: dict[str, tuple[wl.ScoreFunction, Any, Any]] = {
    "rational": (
        wl.ScoreFunction("z * (0.5 + 0.5 * z / (1 + abs(z)))"),
        lambda z: z * (0.5 + 0.5 * z / (1 + np.abs(z))),
        lambda z: 0.5 + 0.5 * z / (1 + np.abs(z)) + 0.5 * z / (1 + np.abs(z)) ** 2,
    ),
    "relu2": (
        wl.ScoreFunction("pow(relu(z), 2)", slope="2 * relu(z)"),
        lambda z: np.maximum(z, 0) ** 2,
        lambda z: 2 * np.maximum(z, 0),
    ),
    "never 0": (
        wl.ScoreFunction("1.5 + tanh(beta * z)", beta=0.7),
        lambda z: 1.5 + np.tanh(0.7 * z),
        lambda z: 0.7 * (1 - np.tanh(0.7 * z) ** 2),
    ),
    "capped": (
        wl.ScoreFunction("t = c * tanh(z / c); t * sigmoid(t)", c=2.5),
        lambda z: 2.5 * np.tanh(z / 2.5) * sigmoid(2.5 * np.tanh(z / 2.5)),
        lambda z: (
            (1 - np.tanh(z / 2.5) ** 2)
            * sigmoid(2.5 * np.tanh(z / 2.5))
            * (1 + 2.5 * np.tanh(z / 2.5) * sigmoid(-2.5 * np.tanh(z / 2.5)))
        ),
    ),
}


@given(problems(ops=("hstu",)), st.sampled_from(sorted(SCORES)))
def test_a_score_function_takes_the_place_of_silu(problem, name):
    """Any legal call, every gradient, by the accuracy rule."""
    score, value, slope = SCORES[name]
    problem.score = (value, slope)
    check(problem, Caller(problem).run(score=score))


@given(problems(ops=("hstu",)))
def test_silu_written_out_is_silu(problem):
    """Nearly: the same steps but for the order of a product."""
    caller = Caller(problem)
    positional, keywords = caller.positional(), caller.keywords()
    built_in = caller.jagged(wl.hstu_attention(**positional, **keywords))
    written = caller.jagged(wl.hstu_attention(**positional, **keywords, score=wl.ScoreFunction("z * sigmoid(z)")))
    unit = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}[problem.dtype]
    # Sums may cancel: what they are made of counts.
    assert np.abs(built_in - written).max(initial=0) <= unit * max(1.0, float(np.abs(built_in).max(initial=0)))


def test_what_nobody_sees_stays_0_where_the_function_is_not():
    """f(0) = 1; NaN in rows that nobody reads reaches nothing."""
    q, k, v = (torch.randn(12, 2, 8) for _ in range(3))
    k[9:], v[9:] = torch.nan, torch.nan
    out = wl.hstu_attention(
        q, k, v, torch.tensor([0, 12]), seqused_q=8, seqused_k=9, divisor=1.0, score=wl.ScoreFunction("1")
    )
    rows = torch.stack([v[: i + 2].sum(dim=0) for i in range(8)])  # r = i + 1
    torch.testing.assert_close(out[:8], rows)
    assert torch.equal(out[8:], torch.zeros(4, 2, 8))


def test_a_score_of_minus_infinity_is_seen_and_a_masked_one_is_not():
    q, k = torch.full((2, 1, 1), -math.inf), torch.ones(2, 1, 1)
    out = wl.hstu_attention(
        q, k, torch.ones(2, 1, 1), torch.tensor([0, 2]), divisor=1.0, score=wl.ScoreFunction("z < 0 ? 3 : 5")
    )
    assert out.flatten().tolist() == [3.0, 6.0]


# --- tracing ----------------------------------------------------------------------------------------------------------

UNARY = {
    "abs": np.abs,
    "exp": np.exp,
    "log1p": np.log1p,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "softplus": lambda x: np.logaddexp(x, 0),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
SAFE = ("relu", "sigmoid", "silu", "softplus", "tanh")  # of any moderate number


@st.composite
def expressions(draw, depth: int = 3):
    """A function of (library, z): library gives the functions, so the same tree runs on symbols and on NumPy."""
    if depth == 0:
        number = draw(st.sampled_from([0.5, 2, -1.25]))
        return draw(st.sampled_from([lambda f, z: z, lambda f, z: number + 0 * z]))
    kind = draw(st.sampled_from(["+", "-", "*", "/", "unary", "unary", "pow", "select", "min"]))
    a = draw(expressions(depth - 1))
    if kind == "unary":
        name = draw(st.sampled_from(SAFE))
        return lambda f, z: f(name)(a(f, z))
    b = draw(expressions(depth - 1))
    return {
        "+": lambda f, z: a(f, z) + b(f, z),
        "-": lambda f, z: a(f, z) - b(f, z),
        "*": lambda f, z: f("tanh")(a(f, z)) * b(f, z),
        "/": lambda f, z: a(f, z) / (1 + f("exp")(f("tanh")(b(f, z)))),
        "pow": lambda f, z: f("tanh")(a(f, z)) ** 2 - b(f, z),
        "select": lambda f, z: f("select")((z > 0.05) & (z < 1.95), a(f, z), b(f, z)),
        "min": lambda f, z: f("min")(a(f, z), b(f, z)),
    }[kind]


@given(expressions())
def test_a_traced_function_is_what_python_computes(tree):
    numpy_functions = {**UNARY, "select": np.where, "min": np.minimum}
    score = wl.ScoreFunction(lambda z: tree(lambda name: getattr(F, name), z))
    points = [-3.0, -1.1, -0.2, 0.0, 0.4, 1.3, 2.7]
    expected = tree(numpy_functions.__getitem__, np.array(points, dtype=np.float32).astype(np.float64))
    values, slopes = score.evaluate(points)
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)
    again = wl.ScoreFunction(score.text, slope=score.slope)
    assert again.evaluate(points) == (values, slopes)


def test_functions_of_numpy_and_torch_are_traced():
    points = [-2.0, -0.5, 0.25, 3.0]
    for function, text in (
        (lambda z: z * torch.sigmoid(1.7 * z), "z * sigmoid(1.7 * z)"),
        (lambda z: np.maximum(z, 0) ** 2, "max(z, 0) * max(z, 0)"),
        (lambda z: torch.nn.functional.silu(z) + torch.where(z > 0, z, -z), "silu(z) + (z > 0 ? z : -z)"),
        (lambda z: 1 / (1 + np.exp(-z)) - np.float32(0.5), "1 / (1 + exp(-z)) - 0.5"),
        (lambda z: torch.clamp(z, -1, 1) - z.clamp(min=-1, max=1).abs(), "clamp(z, -1, 1) - abs(clamp(z, -1, 1))"),
        (lambda z: 3 - 2 / (2 + abs(z)) + (z >= 0) * z, "3 - 2 / (2 + abs(z)) + (z >= 0) * z"),
        (lambda z: np.square(z) - torch.square(z) + np.tanh(z) * 2.0**z, "tanh(z) * pow(2, z)"),
    ):
        assert wl.ScoreFunction(function).evaluate(points)[0] == pytest.approx(
            wl.ScoreFunction(text).evaluate(points)[0], rel=1e-6
        )


def test_parameters_are_named_by_the_function_s_arguments():
    swish = wl.ScoreFunction(lambda z, beta: z * F.sigmoid(beta * z), beta=2)
    assert swish.parameters == {"beta": 2.0}
    assert swish.evaluate([0.5])[0] == wl.ScoreFunction("z * sigmoid(2 * z)").evaluate([0.5])[0]
    mask = wl.MaskFunction(lambda r, nc, w: [(0, nc), (F.max(nc, r - w), r + 1)], w=8)
    assert mask.parameters == {"w": 8}
    assert "ScoreFunction" in repr(swish)
    assert "beta=2.0" in repr(swish)
    assert "w=8" in repr(mask)


# --- masks ------------------------------------------------------------------------------------------------------------

# Section 4 of the mathematics, as a user would write it.
RULES = (
    "history = r < h && (r >= nc || r < 0); context = r >= 0 && r < nc; target = r >= h;"
    "first = context ? 0 : max(0, r - left); group = h + (r - h) / size * size;"
    "[first, target || context ? h : r + right + 1), [target ? group : 0, target ? r + 1 : 0)"
)


@given(problems(biases=False))
def test_the_rules_of_a_mask_written_as_a_function_are_that_mask(problem):
    caller = Caller(problem)
    if problem.intervals is not None or problem.from_history_end:
        return
    far = 2**20
    mask = wl.MaskFunction(
        RULES,
        num_contexts=caller.counts(problem.contexts),
        num_targets=caller.counts(problem.targets),
        left=far if problem.left is None else problem.left,
        right=far if problem.right is None else problem.right,
        size=problem.group,
    )
    expected, found = caller.run(), caller.run(mask=mask)
    for name, value in expected.tensors().items():
        assert np.array_equal(getattr(found, name), value, equal_nan=True), name
    assert expected.lse is None or np.array_equal(found.lse, expected.lse)


def test_a_mask_may_differ_by_head():
    q, k, v = (torch.randn(30, 2, 8) for _ in range(3))
    cu = torch.tensor([0, 10, 30])
    found = wl.hstu_attention(q, k, v, cu, mask=wl.MaskFunction("[r - 3 * head, r + 1)"))
    for head in range(2):
        one = wl.hstu_attention(*(x[:, head : head + 1] for x in (q, k, v)), cu, mask=wl.Mask(left=3 * head, right=0))
        assert torch.equal(found[:, head : head + 1], one)


def test_a_mask_serves_both_operators_and_dense_batches():
    q, k, v = (torch.randn(3, 20, 2, 8) for _ in range(3))
    mask = wl.MaskFunction("[r / 8 * 8, r + 1)")
    intervals = torch.tensor([[i // 8 * 8, i + 1] for i in range(20)], dtype=torch.int32).repeat(3, 1)
    same = wl.IntervalMask(intervals.reshape(1, 60, 1, 2))
    assert torch.equal(wl.hstu_attention(q, k, v, mask=mask), wl.hstu_attention(q, k, v, mask=same))
    out, lse = wl.softmax_attention(q, k, v, mask=mask, return_lse=True)
    expected, expected_lse = wl.softmax_attention(q, k, v, mask=same, return_lse=True)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


# --- torch ------------------------------------------------------------------------------------------------------------


def call() -> tuple[list[torch.Tensor], dict[str, Any]]:
    torch.manual_seed(0)
    options = {
        "score": wl.ScoreFunction("z * tanh(softplus(beta * z))", beta=1.2),
        "mask": wl.MaskFunction("[0, nc), [max(nc, r - w), r + 1)", num_contexts=2, w=4),
        "divisor": 3.0,
    }
    return [torch.randn(12, 2, 8, requires_grad=True) for _ in range(3)], options


CU = torch.tensor([0, 5, 5, 12], dtype=torch.int32)


def test_autograd_compile_and_opcheck():
    tensors, options = call()
    dout = torch.randn(12, 2, 8)

    def attend(q, k, v):
        return wl.hstu_attention(q * 1, k, v, CU, **options)

    eager = torch.autograd.grad(attend(*tensors), tensors, dout)
    functional = wl.hstu_attention_backward(dout, *tensors, CU, **options)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*tensors), tensors, dout)
    for a, b, c in zip(eager, functional[:3], found, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
    from warploom._arguments import flatten, hstu_extras

    flat = flatten(*tensors, CU, None, options["mask"], None, None, 7, 7, None, None, False, False)
    torch.library.opcheck(
        torch.ops.warploom.hstu_attention.default,
        flat + hstu_extras(3.0, True, options["score"]),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_another_value_of_a_parameter_is_another_result():
    tensors, _ = call()
    results = [
        wl.hstu_attention(*tensors, CU, score=wl.ScoreFunction("z * sigmoid(beta * z)", beta=beta)) for beta in (1, 2)
    ]
    torch.testing.assert_close(results[0], wl.hstu_attention(*tensors, CU), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(results[0], results[1])


def test_threads_share_functions():
    tensors, options = call()
    q, k, v = (x.detach() for x in tensors)
    expected = wl.hstu_attention(q, k, v, CU, **options)
    results: list[Any] = [None] * 8

    def work(n):
        score = wl.ScoreFunction("z * tanh(softplus(beta * z))", beta=1.2)
        results[n] = [wl.hstu_attention(q, k, v, CU, **{**options, "score": score}) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, expected) for outs in results for out in outs)


def test_explain_and_warmup_take_functions():
    _, options = call()
    plan = wl.explain((12, 2, 8), (12, 2, 8), (12, 2, 8), [0, 12], dtype="float32", **options)
    assert plan["score_function"]["derived"]
    assert plan["score_function"]["parameters"] == ["beta"]
    assert plan["mask_function"]["intervals"] == 2
    wl.warmup((12, 2, 8), (12, 2, 8), (12, 2, 8), [0, 12], dtype="float32", **options)


# --- messages ---------------------------------------------------------------------------------------------------------


def message(kind: type[Exception], make: Any) -> str:
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


def test_the_place_of_a_mistake_is_marked():
    text = message(ValueError, lambda: wl.ScoreFunction("t = z * z;\nt * sigmod(t)"))
    assert text.splitlines() == [
        text.splitlines()[0],
        "  line 2, column 5:  t * sigmod(t)",
        "                         ^~~~~~",
    ]
    assert "did you mean sigmoid?" in text
    assert "slope: unknown name y" in message(ValueError, lambda: wl.ScoreFunction("z", slope="2 * y"))
    assert "half-open" in message(ValueError, lambda: wl.MaskFunction("[0, r]"))


@pytest.mark.parametrize(
    ("kind", "words", "make"),
    [
        (TypeError, "cannot branch", lambda: wl.ScoreFunction(lambda z: z if z > 0 else 0)),
        (TypeError, "math.exp", lambda: wl.ScoreFunction(lambda z: math.exp(z))),
        (TypeError, "asks for beta", lambda: wl.ScoreFunction(lambda z, beta: z * beta)),
        (TypeError, "cannot be traced", lambda: wl.ScoreFunction(lambda z: torch.fft.fft(z))),
        (TypeError, "use numbers", lambda: wl.ScoreFunction(lambda z: z * "2")),
        (AttributeError, "has no cumsum", lambda: wl.ScoreFunction(lambda z: z.cumsum())),
        (TypeError, "belongs to masks", lambda: wl.ScoreFunction(lambda z: z // 2)),
        (TypeError, "use //", lambda: wl.MaskFunction(lambda r: (0, r / 2))),
        (TypeError, "returns pairs", lambda: wl.MaskFunction(lambda r: r)),
        (TypeError, "pass a text", lambda: wl.ScoreFunction(3)),
        (TypeError, "beta is a builtins.str", lambda: wl.ScoreFunction("z * beta", beta="2")),
        (TypeError, "w is a builtins.float", lambda: wl.MaskFunction("[0, w)", w=2.5)),
        (ValueError, "not a finite float32", lambda: wl.ScoreFunction("z * beta", beta=math.inf)),
        (ValueError, "not an int32", lambda: wl.MaskFunction("[0, w)", w=2**40)),
        (ValueError, "has a meaning already", lambda: wl.ScoreFunction("z", exp=2)),
        (ValueError, "null character", lambda: wl.ScoreFunction("z\0")),
    ],
)
def test_what_cannot_be_a_function_is_refused(kind, words, make):
    assert words in message(kind, make)


def test_where_functions_do_not_belong():
    (q, k, v), options = call()
    with pytest.raises(TypeError, match="score"):
        wl.softmax_attention(q, k, v, CU, score=options["score"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="score is a str"):
        wl.hstu_attention(q, k, v, CU, score="z")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_targets"):
        wl.hstu_attention(q, k, v, CU, mask=wl.MaskFunction("[0, h)", num_targets=8))
