"""Packs a checked call and runs it."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _layout, _library
from ._arguments import BIAS, BIAS_KIND, Flat
from ._describe import (
    DTYPE_NAMES,
    POSITION_GRAD,
    TIME_GRAD,
    VALUES_GRAD,
    Backend,
    Description,
    check_device,
    check_shape,
    describe,
    dtype_name,
    gradient_pitch,
)


class Gradients(NamedTuple):
    """Gradients of one call, shaped and typed like their tensors.

    dbias: None without a bias, a tensor for a dense or packed bias, a pair (position, time) for a bucketed bias with
    None for an absent table.
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any


def _strided(tensor: Any, call: Description) -> tuple[int, ...]:
    """A warploom_tensor's fields."""
    stride = tensor.stride()
    if call.dense:
        return (tensor.data_ptr(), stride[0], stride[1], stride[2])
    return (tensor.data_ptr(), 0, stride[0], stride[1])


def _lse_fields(lse: Any, call: Description) -> tuple[int, ...]:
    if lse is None:
        return (0, 0, 0)
    stride = lse.stride()
    return (lse.data_ptr(), stride[0], stride[1]) if call.dense else (lse.data_ptr(), 0, stride[0])


def pack_forward(op: int, call: Description, out: Any, lse: Any) -> bytes:
    return b"".join(
        (
            _layout.TENSORS_FORWARD.pack(
                *(_layout.ABI_VERSION, _layout.STRUCT_BYTES, op, _layout.FORWARD, *call.head, *call.inputs),
                *_strided(out, call),
                *_lse_fields(lse, call),
            ),
            _layout.LENGTHS_MASK_SCALARS.pack(*call.tail),
            _layout.EMPTY_BIAS if call.bias is None else _layout.BIAS.pack(*call.bias),
            _layout.EMPTY_TAIL if call.functions is None else _layout.TAIL.pack(*call.functions, 0, 0),
        )
    )


def forward(op: int, flat: Flat, backend: Backend, want_lse: bool) -> tuple[Any, Any]:
    """Runs a forward pass: (out, lse or None)."""
    call = describe(op, flat, backend)
    out = backend.empty(call.out, flat[0])
    lse = backend.empty_float32(call.lse, flat[0]) if want_lse else None
    status = _library.run(pack_forward(op, call, out, lse))
    if status != 0:
        _library.raise_last_error(status)
    return out, lse


def pack_backward(op: int, call: Description, dout: Any, out: Any, lse: Any, results: tuple[Any, ...]) -> bytes:
    dq, dk, dv, dbias, dposition, dtime = results
    out_fields = (0, 0, 0, 0) if out is None else _strided(out, call)
    bias = _layout.EMPTY_BIAS
    if call.bias is not None:
        fields = list(call.bias)
        fields[VALUES_GRAD] = 0 if dbias is None else dbias.data_ptr()
        fields[POSITION_GRAD] = 0 if dposition is None else dposition.data_ptr()
        fields[TIME_GRAD] = 0 if dtime is None else dtime.data_ptr()
        bias = _layout.BIAS.pack(*fields)
    return b"".join(
        (
            _layout.TENSORS_BACKWARD.pack(
                *(
                    _layout.ABI_VERSION,
                    _layout.STRUCT_BYTES,
                    op,
                    _layout.BACKWARD,
                    *call.head,
                    *call.inputs,
                    *out_fields,
                ),
                *(*_strided(dout, call), *_strided(dq, call), *_strided(dk, call), *_strided(dv, call)),
                *_lse_fields(lse, call),
            ),
            _layout.LENGTHS_MASK_SCALARS.pack(*call.tail),
            bias,
            _layout.EMPTY_TAIL if call.functions is None else _layout.TAIL.pack(*call.functions, 0, 0),
        )
    )


def _check_result(name: str, tensor: Any, shape: tuple[int, ...], like: Any, dtype: Any, backend: Backend) -> Any:
    """dout, out or lse as the library takes it: q's device, the right shape and dtype, last dimension contiguous."""
    if tensor.dtype != dtype and dtype_name(tensor) != dtype:
        raise TypeError(f"{name} is {dtype_name(tensor)}; here it must be {DTYPE_NAMES.get(dtype, dtype)}")
    check_shape(name, tensor, shape)
    check_device(name, tensor, like.device)
    return backend.contiguous(tensor) if tensor.stride()[-1] != 1 and shape[-1] > 1 else tensor


def _empty_bias_gradient(flat: Flat, backend: Backend) -> Any:
    """Of a dense or packed bias; a dense one's rows may lie further apart than they are long."""
    values = flat[BIAS]
    shape = tuple(values.shape)
    if flat[BIAS_KIND] != _layout.DENSE_BIAS:
        return backend.empty(shape, values)
    pitch = gradient_pitch(values)
    return (
        backend.empty(shape, values)
        if pitch == shape[-1]
        else backend.empty((*shape[:-1], pitch), values)[..., : shape[-1]]
    )


def backward(
    op: int, flat: Flat, backend: Backend, dout: Any, out: Any, lse: Any, wanted: tuple[bool, bool, bool]
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Runs a backward pass: (dq, dk, dv, dbias, dposition, dtime), None for what is absent or not wanted.

    wanted: whether the gradients of bias, position and time are.
    """
    q, k, v, values, position, time = flat[:6]
    call = describe(op, flat, backend)
    dout = _check_result("dout", dout, call.out, q, q.dtype, backend)
    if op == _layout.SOFTMAX:
        out = _check_result("out", out, call.out, q, q.dtype, backend)
        lse = _check_result("lse", lse, call.lse, q, "float32", backend)
    dq, dk, dv = (backend.empty(tuple(x.shape), x) for x in (q, k, v))
    dbias = _empty_bias_gradient(flat, backend) if values is not None and wanted[0] else None
    dposition, dtime = (
        backend.empty(tuple(x.shape), x) if x is not None and want else None
        for x, want in zip((position, time), wanted[1:], strict=True)
    )
    results = (dq, dk, dv, dbias, dposition, dtime)
    status = _library.run(pack_backward(op, call, dout, out, lse, results))
    if status != 0:
        _library.raise_last_error(status)
    return results


def gradients(flat: Flat, results: tuple[Any, ...]) -> Gradients:
    """The user's form of `backward`'s result."""
    dq, dk, dv, dbias, dposition, dtime = results
    return Gradients(dq, dk, dv, (dposition, dtime) if flat[BIAS_KIND] == _layout.BUCKETED_BIAS else dbias)
