"""Torch: autograd, the registered operators, torch.compile, fake tensors, autocast, transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import warploom as wl
from hypothesis import given
from problems import Caller, problems

CU = torch.tensor([0, 5, 5, 12], dtype=torch.int32)


def tensors(dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> list[torch.Tensor]:
    """q, k, v of 12 rows, 4 heads over 2 key heads, D 8, Dv 16."""
    torch.manual_seed(0)
    shapes = ((12, 4, 8), (12, 2, 8), (12, 2, 16))
    return [torch.randn(shape, dtype=dtype, requires_grad=requires_grad) for shape in shapes]


def bucketed(requires_grad: bool = False) -> wl.BucketedBias:
    position = torch.linspace(-1, 1, 8).reshape(1, 8).requires_grad_(requires_grad)
    time = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_(requires_grad)
    return wl.BucketedBias(position, time, torch.arange(12) ** 3)


# --- autograd ---------------------------------------------------------------------------------------------------------


@given(problems())
def test_autograd_gives_the_functional_gradients(problem):
    """Bit for bit, for q, k, v and every table of a bias."""
    caller = Caller(problem)
    positional, keywords = caller.positional(), {**caller.keywords(), "deterministic": True}
    functional = caller.run(deterministic=True)
    for name in "qkv":
        positional[name].requires_grad_()
    bias = keywords["bias"]
    tables = [getattr(bias, name, None) for name in ("values", "position", "time")]
    for table in tables:
        if table is not None:
            table.requires_grad_()
    operator = wl.hstu_attention if problem.op == "hstu" else wl.softmax_attention
    out = operator(**positional, **keywords)
    dout = caller.rows(problem.dout, problem.slots_q)
    out.backward(dout)
    for name in "qkv":
        actual, expected = caller.jagged(positional[name].grad), getattr(functional, f"d{name}")
        assert (actual == expected).all(), name
    names = ("dbias", "dposition", "dtime")
    for name, table in zip(names, tables, strict=True):
        if table is not None:
            assert (caller.numpy(table.grad) == getattr(functional, name)).all(), name


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
@pytest.mark.parametrize("which", range(5))
def test_only_what_requires_a_gradient_gets_one(operator, which):
    q, k, v = tensors()
    bias = bucketed()
    inputs = [q, k, v, bias.position, bias.time]
    inputs[which].requires_grad_()
    operator(q, k, v, CU, bias=bias).square().sum().backward()
    for number, x in enumerate(inputs):
        assert (x.grad is not None) == (number == which)
        if x.grad is not None:
            assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_gradients_flow_through_views(operator):
    """A packed qkv projection: q, k, v are views with gaps, dout is expanded."""
    torch.manual_seed(0)
    packed = torch.randn(12, 4, 3 * 8, requires_grad=True)
    out = operator(*packed.split(8, dim=2), CU)
    out.sum().backward()
    copies = [x.detach().clone().requires_grad_() for x in packed.split(8, dim=2)]
    operator(*copies, CU).sum().backward()
    assert torch.equal(packed.grad, torch.cat([x.grad for x in copies], dim=2))


@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "divisor", "dout"])
def test_negation_that_torch_puts_off_is_carried_out(name):
    """The imaginary part of a conjugate holds the memory of its opposite."""
    tensors = {x: torch.randn(2, 5, 2, 8, requires_grad=True) for x in "qkv"}
    tensors |= {"bias": torch.randn(1, 1, 5, 5), "divisor": torch.randn(10), "dout": torch.randn(2, 5, 2, 8)}

    def results(**replaced):
        given = {**tensors, **replaced}
        dout = given.pop("dout")
        out = wl.hstu_attention(**given)
        gradients = wl.hstu_attention_backward(dout, **given)
        return [out, *torch.autograd.grad(out, [tensors[x] for x in "qkv"], dout), *gradients]

    late = torch._neg_view(tensors[name])
    assert late.is_neg()
    for found, expected in zip(results(**{name: late}), results(**{name: late.resolve_neg()}), strict=True):
        assert torch.equal(found, expected)


def test_dense_bias_that_is_broadcast_by_expand_gets_the_sum():
    q, k, v = (torch.randn(2, 6, 3, 8) for _ in range(3))
    small = torch.randn(1, 1, 6, 6, requires_grad=True)
    wl.hstu_attention(q, k, v, bias=small).sum().backward()
    expected = small.grad.clone()
    small.grad = None
    wl.hstu_attention(q, k, v, bias=small.expand(2, 3, 6, 6)).sum().backward()
    torch.testing.assert_close(small.grad, expected)


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_saved_for_backward_are_the_inputs_and_results_alone(operator):
    q, k, v = tensors(requires_grad=True)
    bias = bucketed(requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        out = operator(q, k, v, CU, bias=bias)
    allowed = [q, k, v, CU, bias.position, bias.time, bias.timestamps]
    own = [x for x in saved if all(x.data_ptr() != y.data_ptr() for y in allowed)]
    if operator is wl.hstu_attention:
        assert not own
    else:
        assert len(own) == 2
        assert {tuple(x.shape) for x in own} == {tuple(out.shape), (4, 12)}


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_double_backward_is_refused(operator):
    q, k, v = tensors(requires_grad=True)
    out = operator(q, k, v, CU)
    (gradient,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        gradient.sum().backward()


def test_lse_is_not_differentiable():
    q, k, v = tensors(requires_grad=True)
    out, lse = wl.softmax_attention(q, k, v, CU, return_lse=True)
    assert out.requires_grad
    assert not lse.requires_grad


def test_changing_an_input_before_backward_is_noticed():
    q, k, v = tensors(requires_grad=True)
    out = wl.hstu_attention(q, k, v, CU)
    with torch.no_grad():
        k.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_no_grad_and_inference_mode_keep_no_graph():
    q, k, v = tensors(requires_grad=True)
    with torch.no_grad():
        assert not wl.hstu_attention(q, k, v, CU).requires_grad
    with torch.inference_mode():
        assert wl.hstu_attention(q, k, v, CU).is_inference()


def test_global_determinism_is_honoured():
    q, k, v = tensors(requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        wl.hstu_attention(q, k, v, CU).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert q.grad is not None


# --- the registered operators -----------------------------------------------------------------------------------------


def flat(op: str, bias: Any = None, mask: Any = None, requires_grad: bool = True, **keywords: Any) -> tuple[Any, ...]:
    """The operator's arguments of a call."""
    captured: list[tuple[Any, ...]] = []

    class Capture(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "warploom":
                captured.append(args)
            return function(*args, **(kwargs or {}))

    q, k, v = tensors()
    operator = wl.hstu_attention if op == "hstu" else wl.softmax_attention
    with Capture():
        operator(q, k, v, CU, bias=bias, mask=mask or wl.Mask.causal(), **keywords)
    (arguments,) = captured
    return tuple(
        x.detach().clone().requires_grad_()
        if requires_grad and isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in arguments
    )


CALLS = {
    "plain": {},
    "dense bias": {"bias": torch.linspace(-1, 1, 4 * 49).reshape(1, 4, 7, 7)},
    "packed bias": {"bias": wl.PackedBias(torch.linspace(-1, 1, 96).reshape(1, 96))},
    "bucketed bias": {"bias": bucketed()},
    "counts": {"mask": wl.Mask(right=0, num_contexts=1, num_targets=torch.tensor([1, 0, 2]), left=3), "alpha": 0.3},
    "intervals": {"mask": wl.IntervalMask(torch.tensor([[[0, 2], [3, 9]]] * 12, dtype=torch.int32)[None])},
}


@pytest.mark.parametrize("op", ["hstu", "softmax"])
@pytest.mark.parametrize("case", CALLS)
def test_opcheck_passes(op, case):
    arguments = flat(op, **CALLS[case])
    forward = getattr(torch.ops.warploom, f"{op}_attention").default
    torch.library.opcheck(forward, arguments)
    plain = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
    results = forward(*plain)
    wanted = [x is not None for x in plain[3:6]]
    results = (torch.ones_like(results),) if op == "hstu" else (torch.ones_like(results[0]), *results)
    torch.library.opcheck(getattr(torch.ops.warploom, f"{op}_attention_backward").default, (*results, *plain, wanted))


@pytest.mark.parametrize("op", ["hstu", "softmax"])
@pytest.mark.parametrize("case", CALLS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_call_equals_the_eager_one(op, case, dynamic):
    """torch.compile(fullgraph=True), forward and backward, masks and biases given from outside or made inside."""
    torch._dynamo.reset()
    operator = wl.hstu_attention if op == "hstu" else wl.softmax_attention
    call = CALLS[case]

    def model(q: Any, k: Any, v: Any, cu: Any) -> Any:
        return operator(q * 2, k, v, cu, max_seqlen_q=7, max_seqlen_k=7, **call) * 3

    eager, compiled = tensors(requires_grad=True), tensors(requires_grad=True)
    expected = model(*eager, CU)
    actual = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")(*compiled, CU)
    torch.testing.assert_close(actual, expected)
    for out in (expected, actual):
        out.square().sum().backward()
    for one, two in zip(eager, compiled, strict=True):
        torch.testing.assert_close(two.grad, one.grad)


def test_mask_and_bias_tensors_of_the_graph_compile():
    """Masks and biases made inside the compiled function from its own tensors; their gradients flow."""

    def model(q: Any, k: Any, v: Any, counts: Any, table: Any) -> Any:
        bias = wl.BucketedBias(position=table.exp())
        mask = wl.Mask(right=0, num_targets=counts + 1, target_group_size=2)
        first = wl.hstu_attention(q, k, v, CU, mask=mask, bias=bias, divisor=3.0)
        out, lse = wl.softmax_attention(
            q, k, v, CU, bias=wl.DenseBias(table[:, None, None].expand(1, 1, 7, 7)), return_lse=True
        )
        return first + out + lse.nan_to_num(neginf=0).mean()

    counts = torch.tensor([0, -1, 3], dtype=torch.int32)
    results = []
    for function in (model, torch.compile(model, fullgraph=True)):
        inputs = [*tensors(requires_grad=True), counts, torch.zeros(1, 7, requires_grad=True)]
        out = function(*inputs)
        out.square().sum().backward()
        results.append((out, *(x.grad for x in inputs if x.requires_grad)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_compiled_error_is_the_eager_one():
    q, k, v = tensors()
    compiled = torch.compile(lambda q: wl.hstu_attention(q, k, v, CU, mask=wl.Mask(right=0, left=-1)), backend="eager")
    with pytest.raises(ValueError, match="left = -1"):
        compiled(q)


def test_fake_and_meta_tensors_have_the_results_shapes():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((12, 4, 8), (12, 2, 8), (12, 2, 16)))
        out, lse = wl.softmax_attention(q, k, v, torch.empty(4, dtype=torch.int32), return_lse=True)
        assert (out.shape, out.dtype) == ((12, 4, 16), torch.bfloat16)
        assert (lse.shape, lse.dtype) == ((4, 12), torch.float32)
    dense = [torch.empty(2, 6, 4, 8, device="meta") for _ in range(3)]
    assert wl.hstu_attention(*dense).shape == (2, 6, 4, 8)
    assert wl.softmax_attention(*dense, return_lse=True)[1].shape == (2, 4, 6)


def test_export_keeps_the_operator():
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return wl.hstu_attention(q, k, v, CU, max_seqlen_q=7)

    program = torch.export.export(Model(), tuple(tensors()))
    assert any("warploom.hstu_attention" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(*tensors()), Model()(*tensors()))


# --- modes and transforms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_autocast_casts_q_k_v_and_leaves_a_float32_bias(operator):
    q, k, v = tensors(requires_grad=True)
    bias = bucketed(requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = operator(q, k.bfloat16(), v, CU, bias=bias)
        compiled = torch.compile(lambda q: operator(q, k, v, CU, bias=bias), fullgraph=True, backend="eager")(q)
    expected = operator(q.bfloat16(), k.bfloat16(), v.bfloat16(), CU, bias=bias)
    assert torch.equal(out, expected)
    assert torch.equal(compiled, expected)
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32
    assert bias.position.grad.dtype == torch.float32


def test_torch_func_grad_works():
    q, k, v = tensors()
    gradient = torch.func.grad(lambda q: wl.hstu_attention(q, k, v, CU).square().sum())(q)
    q.requires_grad_()
    wl.hstu_attention(q, k, v, CU).square().sum().backward()
    assert torch.equal(gradient, q.grad)


@pytest.mark.parametrize("operator", [wl.hstu_attention, wl.softmax_attention])
def test_vmap_is_refused_with_what_to_do(operator):
    q, k, v = tensors()
    with pytest.raises(RuntimeError, match=r"vmap.*cu_seqlens"):
        torch.vmap(lambda q: operator(q, k, v, CU))(torch.stack([q, q]))


def test_forward_mode_is_refused():
    q, k, v = tensors()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(RuntimeError, match=r"jvp.*reverse mode"):
            wl.hstu_attention(dual, k, v, CU)


def test_checkpointing_recomputes_the_same():
    q, k, v = tensors(requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(lambda *x: wl.hstu_attention(*x, CU), q, k, v, use_reentrant=False)
    out.square().sum().backward()
    copies = tensors(requires_grad=True)
    wl.hstu_attention(*copies, CU).square().sum().backward()
    assert torch.equal(q.grad, copies[0].grad)
