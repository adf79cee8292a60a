"""Calls on torch tensors, and the torch operators in namespace ``warploom``.

``hstu_attention``, ``softmax_attention`` and their ``_backward`` are registered with kernels for CPU and CUDA, fake
kernels and autograd, so that torch.compile, export, fake tensors and subclasses see ordinary operators. A plain eager
call does not need the dispatcher and goes to the same kernels directly: the dispatcher and its Python wrappers cost
more than the attention of a short sequence.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from . import _arrays, _call, _describe, _layout
from ._arguments import (
    BIAS,
    BIAS_KIND,
    DETERMINISTIC,
    DIVISOR_ROWS,
    NUM_COMMON,
    NUM_DIFFERENTIABLE,
    NUM_HSTU,
    NUM_TENSORS,
    POSITION,
    TENSOR_NAMES,
    TIME,
    Flat,
    kind_name,
)
from ._call import Gradients

_describe.DTYPE_CODES.update(
    {torch.float32: _layout.FLOAT32, torch.float16: _layout.FLOAT16, torch.bfloat16: _layout.BFLOAT16}
)
_describe.DTYPE_NAMES.update(
    {
        torch.float32: "float32",
        torch.float16: "float16",
        torch.bfloat16: "bfloat16",
        torch.float64: "float64",
        torch.int32: "int32",
        torch.int64: "int64",
    }
)

_PLAIN = frozenset((Tensor, torch.nn.Parameter))


class _Backend:
    """Allocates with torch, on q's device."""

    @staticmethod
    def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_empty(shape)

    @staticmethod
    def empty_float32(shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=like.device)

    @staticmethod
    def int32(tensor: Tensor) -> Tensor:
        return tensor.clamp(-(2**31), 2**31 - 1).to(torch.int32)

    @staticmethod
    def contiguous(tensor: Tensor) -> Tensor:
        return tensor.contiguous()

    @staticmethod
    def stream(device_index: int) -> int:
        # torch.cuda.current_stream(device_index).cuda_stream without the objects in between.
        return int(torch._C._cuda_getCurrentRawStream(device_index))


_backend = _Backend()

# --- conversion of what is not torch's --------------------------------------------------------------------------------


def tensor(name: str, value: Any) -> Tensor:
    """An array of any library as a tensor that shares its memory."""
    if isinstance(value, Tensor):
        return value
    if _arrays.is_numpy(value) or not hasattr(value, "__dlpack__"):
        if not (hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__")):
            raise TypeError(f"{name} is a {kind_name(value)}; {_arrays.ARRAY_KINDS}")
        if _arrays.is_numpy(value) and not value.flags.writeable:
            value = value.copy()  # torch has no read-only tensors and warns
        return torch.as_tensor(value)
    try:
        return from_dlpack(value)
    except Exception as error:  # a producer may raise anything
        raise TypeError(f"{name} ({kind_name(value)}) cannot be read through DLPack: {error}") from error


_SOFTMAX_PLACES = tuple(range(NUM_TENSORS))
_HSTU_PLACES = (*_SOFTMAX_PLACES, DIVISOR_ROWS)


def _tensors(flat: Flat) -> tuple[Flat, bool]:
    """The flat tuple with every array as a tensor, and whether all of them are plain tensors.

    A tensor whose negation torch puts off (the imaginary part of a conjugate) is negated here: kernels read memory as
    it is.
    """
    plain = True
    values: list[Any] | None = None
    for place in _HSTU_PLACES if len(flat) == NUM_HSTU else _SOFTMAX_PLACES:
        value = flat[place]
        if value is None:
            continue
        if type(value) in _PLAIN:
            if value.is_neg():
                values = list(flat) if values is None else values
                values[place] = value.resolve_neg()
            continue
        if not isinstance(value, Tensor):
            values = list(flat) if values is None else values
            name = "divisor" if place == DIVISOR_ROWS else TENSOR_NAMES[place]
            values[place] = value = tensor(name, value)
        plain = plain and type(value) in _PLAIN
    return (flat if values is None else tuple(values)), plain


def _refuse_layouts(flat: Flat, *gradients: tuple[str, Any]) -> None:
    """TypeError for a sparse or nested tensor. Called when a call has failed: looking first would cost every call."""
    names = (*TENSOR_NAMES, "divisor") if len(flat) == NUM_HSTU else TENSOR_NAMES
    places = _HSTU_PLACES if len(flat) == NUM_HSTU else _SOFTMAX_PLACES
    for name, value in (*zip(names, (flat[place] for place in places), strict=True), *gradients):
        if not isinstance(value, Tensor):
            continue
        if value.is_nested:
            raise TypeError(
                f"{name} is a nested tensor; pass the rows of all sequences, nested.values(), and nested.offsets() as "
                "cu_seqlens"
            ) from None
        if value.layout is not torch.strided:
            raise TypeError(
                f"{name} has layout {value.layout}; pass a strided tensor, {name}.to_dense() where it fits in memory"
            ) from None


_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def _autocast(flat: Flat) -> Flat:
    """Inside torch.autocast q, k and v go to its dtype, as for scaled_dot_product_attention; a bias is left alone."""
    if not _any_autocast():
        return flat
    q, k, v = flat[:3]
    device = q.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return flat
    dtype = torch.get_autocast_dtype(device)
    served = (torch.float32, torch.float16, torch.bfloat16)
    return (*(x.to(dtype) if x.dtype in served else x for x in (q, k, v)), *flat[3:])


# --- one call: direct, through autograd, or through the dispatcher ----------------------------------------------------

# Private names of torch that say whether anything wants to see operators. Where a release lacks one, its answer is yes
# and every call goes through the dispatcher.
_function_modes = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_functorch = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", lambda: 1)
_tracing = getattr(torch._C, "_get_tracing_state", lambda: 1)
_is_grad_enabled = torch.is_grad_enabled
_forward_ad = torch.autograd.forward_ad


def _observed() -> bool:
    """Whether a mode or a tracer must see this call as an operator."""
    return bool(_function_modes() or _dispatch_modes() or _tracing() is not None)


def _transformed() -> bool:
    """Whether a torch.func transform or forward-mode AD is at work.

    They take autograd functions, but no operators made in Python.
    """
    return _functorch() is not None or _forward_ad._current_level >= 0


def _needs_grad(flat: Flat) -> bool:
    if not _is_grad_enabled():
        return False
    q, k, v, bias, position, time = flat[:NUM_DIFFERENTIABLE]
    return bool(
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (bias is not None and bias.requires_grad)
        or (position is not None and position.requires_grad)
        or (time is not None and time.requires_grad)
    )


def _direct_device(flat: Flat) -> bool:
    return bool(flat[0].is_cpu or flat[0].is_cuda)


def hstu(flat: Flat) -> Any:
    try:
        flat, plain = _tensors(flat)
        flat = _autocast(flat)
        if not plain or _observed() or not _direct_device(flat):
            return _ops.hstu_attention(*flat)
        if _transformed():
            return _hstu_transformed(flat)
        if _needs_grad(flat):
            return _hstu_node(flat)
        out, _ = _call.forward(_layout.HSTU, flat, _backend, False)
        return out
    except (RuntimeError, ValueError):
        _refuse_layouts(flat)
        raise


def softmax(flat: Flat, return_lse: bool) -> Any:
    try:
        flat, plain = _tensors(flat)
        flat = _autocast(flat)
        if not plain or _observed() or not _direct_device(flat):
            out, lse = _ops.softmax_attention(*flat)
        elif _transformed():
            out, lse = _softmax_transformed(flat)
        elif _needs_grad(flat):
            out, lse = _softmax_node(flat)
        else:
            out, lse = _call.forward(_layout.SOFTMAX, flat, _backend, return_lse)
        return (out, lse) if return_lse else out
    except (RuntimeError, ValueError):
        _refuse_layouts(flat)
        raise


def traced_hstu(flat: Flat) -> Any:
    """A call inside torch.compile or export: always the operator. Dynamo reads this."""
    return _ops.hstu_attention(*_autocast(flat))


def traced_softmax(flat: Flat, return_lse: bool) -> Any:
    out, lse = _ops.softmax_attention(*_autocast(flat))
    return (out, lse) if return_lse else out


def _wanted(flat: Flat) -> list[bool]:
    return [flat[BIAS] is not None, flat[POSITION] is not None, flat[TIME] is not None]


def hstu_backward(dout: Any, flat: Flat) -> Gradients:
    try:
        flat, _ = _tensors(flat)
        arguments = (tensor("dout", dout), *flat, _wanted(flat))
        return _gradients(flat, _backward("hstu_attention_backward", _hstu_backward_kernel, arguments, flat))
    except (RuntimeError, ValueError):
        _refuse_layouts(flat, ("dout", dout))
        raise


def softmax_backward(dout: Any, out: Any, lse: Any, flat: Flat) -> Gradients:
    try:
        flat, _ = _tensors(flat)
        arguments = (tensor("dout", dout), tensor("out", out), tensor("lse", lse), *flat, _wanted(flat))
        return _gradients(flat, _backward("softmax_attention_backward", _softmax_backward_kernel, arguments, flat))
    except (RuntimeError, ValueError):
        _refuse_layouts(flat, ("dout", dout), ("out", out), ("lse", lse))
        raise


def _gradients(flat: Flat, results: tuple[Tensor, ...]) -> Gradients:
    """An operator returns an empty tensor for a gradient that is absent; the user gets None."""
    present = (gradient if want else None for gradient, want in zip(results[3:], _wanted(flat), strict=True))
    return _call.gradients(flat, (*results[:3], *present))


# --- kernels and fake kernels -----------------------------------------------------------------------------------------

_COMMON_SCHEMA = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? position, Tensor? time, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_q, Tensor? seqused_k, Tensor? num_contexts, "
    "Tensor? num_targets, Tensor? intervals, Tensor? timestamps, Tensor? time_bucket, SymInt? max_seqlen_q, "
    "SymInt? max_seqlen_k, SymInt? seqused_q_all, SymInt? seqused_k_all, SymInt? left, SymInt? right, "
    "SymInt? num_contexts_all, SymInt? num_targets_all, SymInt target_group_size, bool target_window_from_history_end, "
    "float? alpha, bool deterministic, bool check_inputs, int bias_kind, int bias_rows, "
    "str? mask_function, str? mask_parameters, float[]? mask_values"
)
_HSTU_SCHEMA = _COMMON_SCHEMA + (
    ", Tensor? divisor_rows, float? divisor, bool bias_scaled_by_alpha, "
    "str? score, str? score_slope, str? score_parameters, float[]? score_values"
)
_SOFTMAX_SCHEMA = _COMMON_SCHEMA + ", float softcap"
_GRADIENTS_SCHEMA = "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dposition, Tensor dtime)"
_SCHEMAS = {
    "hstu_attention": f"({_HSTU_SCHEMA}) -> Tensor",
    "softmax_attention": f"({_SOFTMAX_SCHEMA}) -> (Tensor out, Tensor lse)",
    "hstu_attention_backward": f"(Tensor dout, {_HSTU_SCHEMA}, bool[] wanted) -> {_GRADIENTS_SCHEMA}",
    "softmax_attention_backward": (
        f"(Tensor dout, Tensor out, Tensor lse, {_SOFTMAX_SCHEMA}, bool[] wanted) -> {_GRADIENTS_SCHEMA}"
    ),
}


def _hstu_kernel(*flat: Any) -> Tensor:
    out: Tensor = _call.forward(_layout.HSTU, flat, _backend, False)[0]
    return out


def _softmax_kernel(*flat: Any) -> tuple[Tensor, Tensor]:
    return _call.forward(_layout.SOFTMAX, flat, _backend, True)


def _present(flat: Flat, results: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """An operator cannot return None: an absent gradient is an empty tensor of its own."""
    return tuple(flat[0].new_empty(0) if gradient is None else gradient for gradient in results)


def _deterministic(flat: Flat) -> Flat:
    """torch.use_deterministic_algorithms asks for it too."""
    if torch.are_deterministic_algorithms_enabled() and not flat[DETERMINISTIC]:
        return (*flat[:DETERMINISTIC], True, *flat[DETERMINISTIC + 1 :])
    return flat


def _hstu_backward_kernel(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    flat = _deterministic(rest[:-1])
    results = _call.backward(_layout.HSTU, flat, _backend, dout.resolve_neg(), None, None, tuple(rest[-1]))
    return _present(flat, results)


def _softmax_backward_kernel(dout: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    flat = _deterministic(rest[:-1])
    dout, out, lse = dout.resolve_neg(), out.resolve_neg(), lse.resolve_neg()
    return _present(flat, _call.backward(_layout.SOFTMAX, flat, _backend, dout, out, lse, tuple(rest[-1])))


def _fake_out(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _hstu_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return _fake_out(q, v)


def _softmax_fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (q.shape[1], q.shape[0])
    return _fake_out(q, v), q.new_empty(shape, dtype=torch.float32)


def _fake_gradients(flat: Flat, wanted: list[bool]) -> tuple[Tensor, ...]:
    def like(x: Tensor) -> Tensor:
        return x.new_empty(x.shape)

    q, k, v = flat[:3]
    tables = zip(flat[BIAS:NUM_DIFFERENTIABLE], wanted, strict=True)
    firsts = (like(q), like(k), like(v))
    lasts = [like(x) if x is not None and want else q.new_empty(0) for x, want in tables]
    if flat[BIAS_KIND] == _layout.DENSE_BIAS and wanted[0]:
        values = flat[BIAS]
        padded = values.new_empty((*values.shape[:-1], _describe.gradient_pitch(values)))
        lasts[0] = padded[..., : values.shape[-1]]
    return (*firsts, *lasts)


def _hstu_backward_fake(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(rest[:-1], rest[-1])


def _softmax_backward_fake(dout: Tensor, out: Tensor, lse: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _fake_gradients(rest[:-1], rest[-1])


# --- autograd ---------------------------------------------------------------------------------------------------------


def _save(ctx: Any, flat: Flat, *results: Tensor) -> None:
    """Keeps a call for its backward pass: its own tensors (and softmax's results), nothing computed."""
    divisor_rows = flat[DIVISOR_ROWS] if len(flat) == NUM_HSTU else None
    ctx.save_for_backward(*results, *flat[:NUM_TENSORS], divisor_rows)
    ctx.numbers = flat[NUM_TENSORS:NUM_COMMON]
    ctx.extras = flat[NUM_COMMON + 1 :] if len(flat) == NUM_HSTU else flat[NUM_COMMON:]


def _saved(ctx: Any, op: int) -> tuple[tuple[Tensor, ...], Flat]:
    """(softmax's results, the call)"""
    *tensors, divisor_rows = ctx.saved_tensors
    results, tensors = tensors[:-NUM_TENSORS], tensors[-NUM_TENSORS:]
    extras = (divisor_rows, *ctx.extras) if op == _layout.HSTU else ctx.extras
    return tuple(results), (*tensors, *ctx.numbers, *extras)


def _input_gradients(ctx: Any, flat: Flat, results: tuple[Tensor, ...], wanted: list[bool]) -> tuple[Any, ...]:
    tables = (gradient if want else None for gradient, want in zip(results[3:], wanted, strict=True))
    needed = ctx.needs_input_grad
    firsts = (gradient if need else None for gradient, need in zip(results[:3], needed, strict=False))
    return (*firsts, *tables, *(None,) * (len(flat) - NUM_DIFFERENTIABLE))


def _hstu_setup(ctx: Any, inputs: Flat, output: Tensor) -> None:
    _save(ctx, inputs)


def _softmax_setup(ctx: Any, inputs: Flat, output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    _save(ctx, inputs, *output)


def _backward(name: str, kernel: Any, arguments: tuple[Any, ...], flat: Flat) -> Any:
    """Runs a backward operator, directly when nothing wants to see it."""
    plain = all(type(x) in _PLAIN for x in arguments if isinstance(x, Tensor))
    if not plain or _observed() or not _direct_device(flat):
        return getattr(_ops, name)(*arguments)
    if _transformed() or _needs_grad(flat) or (_is_grad_enabled() and arguments[0].requires_grad):
        return _apply_backward(name, kernel, *arguments)
    return kernel(*arguments)


def _hstu_gradients(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
    _, flat = _saved(ctx, _layout.HSTU)
    wanted = list(ctx.needs_input_grad[BIAS:NUM_DIFFERENTIABLE])
    results = _backward("hstu_attention_backward", _hstu_backward_kernel, (dout, *flat, wanted), flat)
    return _input_gradients(ctx, flat, results, wanted)


def _softmax_gradients(ctx: Any, dout: Tensor | None, _: Any) -> tuple[Any, ...]:
    results, flat = _saved(ctx, _layout.SOFTMAX)
    if dout is None:
        return (None,) * len(flat)
    wanted = list(ctx.needs_input_grad[BIAS:NUM_DIFFERENTIABLE])
    arguments = (dout, *results, *flat, wanted)
    gradients = _backward("softmax_attention_backward", _softmax_backward_kernel, arguments, flat)
    return _input_gradients(ctx, flat, gradients, wanted)


def _refuse_second(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "the gradients of warploom's attention are not differentiable: double backward is not served; detach the "
        "gradients, or leave create_graph out"
    )


def _refuse_vmap(name: str) -> Any:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"torch.vmap over warploom.{name} is not served; make the mapped axis the sequences of one batch: "
            "4-D tensors, or cu_seqlens"
        )

    return refuse


def _refuse_jvp(name: str) -> Any:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(
            f"forward-mode AD (jvp) through warploom.{name} is not served; use reverse mode: backward(), torch.func.vjp"
        )

    return refuse


def _eager_node(kernel: Any, setup: Any, gradients: Any) -> Any:
    """The autograd node of a plain eager call: what the operator's registration does, without the dispatcher.

    Takes the differentiable tensors and everything else as one tuple: autograd costs time for each argument.
    """

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            flat = (*inputs[:-1], *inputs[-1])
            output = kernel(*flat)
            setup(ctx, flat, output)
            return output

        @staticmethod
        def backward(ctx: Any, *outer: Any) -> Any:
            return (*gradients(ctx, *outer)[:NUM_DIFFERENTIABLE], None)

    apply: Any = Node.apply
    return lambda flat: apply(*flat[:NUM_DIFFERENTIABLE], flat[NUM_DIFFERENTIABLE:])


def _transformed_node(name: str, kernel: Any, setup: Any, gradients: Any) -> Any:
    """The same in the form that torch.func's transforms take, which costs more."""

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(*flat: Any) -> Any:
            return kernel(*flat)

        setup_context = staticmethod(setup)
        backward = staticmethod(gradients)
        vmap = staticmethod(_refuse_vmap(name))
        jvp = staticmethod(_refuse_jvp(name))

    apply: Any = Node.apply
    return lambda flat: apply(*flat)


_hstu_node = _eager_node(_hstu_kernel, _hstu_setup, _hstu_gradients)
_softmax_node = _eager_node(_softmax_kernel, _softmax_setup, _softmax_gradients)
_hstu_transformed = _transformed_node("hstu_attention", _hstu_kernel, _hstu_setup, _hstu_gradients)
_softmax_transformed = _transformed_node("softmax_attention", _softmax_kernel, _softmax_setup, _softmax_gradients)


class _BackwardFunction(torch.autograd.Function):
    """The gradients themselves, as a node that refuses to be differentiated."""

    @staticmethod
    def forward(name: str, kernel: Any, *arguments: Any) -> Any:
        return kernel(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    backward = staticmethod(_refuse_second)

    @staticmethod
    def vmap(info: Any, in_dims: Any, name: str, *arguments: Any) -> Any:
        return _refuse_vmap(name)()


_apply_backward: Any = _BackwardFunction.apply


def _register() -> Any:
    """Defines the operators; returns their namespace."""
    # Inductor must hand over tensors with the strides that eager has: the last dimension has to be contiguous.
    tag = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
    kernels: dict[str, tuple[Any, Any]] = {
        "hstu_attention": (_hstu_kernel, _hstu_fake),
        "softmax_attention": (_softmax_kernel, _softmax_fake),
        "hstu_attention_backward": (_hstu_backward_kernel, _hstu_backward_fake),
        "softmax_attention_backward": (_softmax_backward_kernel, _softmax_backward_fake),
    }
    autograd: dict[str, tuple[Any, Any]] = {
        "hstu_attention": (_hstu_gradients, _hstu_setup),
        "softmax_attention": (_softmax_gradients, _softmax_setup),
        "hstu_attention_backward": (_refuse_second, None),
        "softmax_attention_backward": (_refuse_second, None),
    }
    for name, (kernel, fake) in kernels.items():
        qualified = f"warploom::{name}"
        torch.library.define(qualified, _SCHEMAS[name], tags=(tag,))
        torch.library.impl(qualified, ("cpu", "cuda"), kernel)
        torch.library.register_fake(qualified, fake)
        backward, setup = autograd[name]
        torch.library.register_autograd(qualified, backward, setup_context=setup)
        torch.library.register_vmap(qualified, _refuse_vmap(name))
    return torch.ops.warploom


_ops = _register()


is_compiling = torch.compiler.is_compiling


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
