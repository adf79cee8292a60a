"""Checks a flat call's tensors, packs it and runs it.

Tensors here are anything with torch's small protocol (shape, stride() in elements, dtype, device, ndim, data_ptr()):
torch tensors as they are, every other array through ``_arrays.View``. What differs between the two (allocating,
converting) is the back end's. Kinds, ranks, dtypes, devices and shapes are checked here; values are checked by the
library, which says so in its own words.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, NoReturn, Protocol

from . import _layout, _library
from ._arguments import BIAS_KIND, Flat

# Places of the gradients' addresses among the fields of warploom_bias.
_VALUES_GRAD, _POSITION_GRAD, _TIME_GRAD = 5, 17, 22

_somewhere = ctypes.c_int64()
_SOMEWHERE = ctypes.addressof(_somewhere)

DTYPE_CODES: dict[Any, int] = {"float32": _layout.FLOAT32, "float16": _layout.FLOAT16, "bfloat16": _layout.BFLOAT16}
# dtype -> its name, for the types that a rule names. The torch back end adds torch's.
DTYPE_NAMES: dict[Any, str] = {name: name for name in ("float32", "float16", "bfloat16", "int32", "int64")}


class Backend(Protocol):
    """What the arrays of one library need."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any: ...
    def empty_float32(self, shape: tuple[int, ...], like: Any) -> Any: ...
    def int32(self, tensor: Any) -> Any:
        """An int64 tensor as int32, values beyond it clamped: a clamped one is still out of every rule's range."""

    def contiguous(self, tensor: Any) -> Any: ...
    def stream(self, device_index: int) -> int:
        """The current CUDA stream's handle."""


class Gradients(NamedTuple):
    """Gradients of one call, shaped and typed like their tensors.

    dbias: None without a bias, a tensor for a dense or packed bias, a pair (position, time) for a bucketed bias with
    None for an absent table.
    """

    dq: Any
    dk: Any
    dv: Any
    dbias: Any


class Shape(NamedTuple):
    """What the allocation of results needs from a checked call, and the pieces of its packed form."""

    head: tuple[Any, ...]
    inputs: tuple[int, ...]
    tail: tuple[Any, ...]
    out: tuple[int, ...]
    lse: tuple[int, ...]
    dense: bool
    bias: tuple[Any, ...] | None
    keep: list[Any]


def dtype_name(tensor: Any) -> str:
    return DTYPE_NAMES.get(tensor.dtype) or str(tensor.dtype)


def _wrong_rank(name: str, tensor: Any, rule: str) -> NoReturn:
    raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {rule}")


def _wrong_device(name: str, tensor: Any, device: Any) -> NoReturn:
    raise RuntimeError(f"{name} is on {tensor.device} and q on {device}; move every tensor of a call to one device")


def _check_last_stride(name: str, tensor: Any, stride: tuple[int, ...]) -> None:
    # An array without elements has any strides.
    if stride[-1] != 1 and tensor.shape[-1] > 1 and 0 not in tensor.shape:
        raise ValueError(
            f"{name} has strides {tuple(stride)}; its last dimension must be contiguous (stride 1), "
            f"pass {name}.contiguous()"
        )


def _check_integers(
    name: str, tensor: Any, shape: tuple[int, ...], device: Any, backend: Backend, keep: list[Any]
) -> int:
    """An int32 tensor's address, after a conversion where one is needed."""
    kind = DTYPE_NAMES.get(tensor.dtype)
    if kind != "int32" and kind != "int64":
        raise TypeError(f"{name} is {dtype_name(tensor)}; pass int32 (int64 is converted)")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; with this batch it must be {shape}")
    if tensor.device != device:
        _wrong_device(name, tensor, device)
    if kind == "int64":
        tensor = backend.int32(tensor)
    return _address(tensor, backend, keep)


def _address(tensor: Any, backend: Backend, keep: list[Any]) -> int:
    """The address of a contiguous form of the tensor, which lives as long as `keep`."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if size > 1 and stride != expected:
            tensor = backend.contiguous(tensor)
            break
        expected *= size
    keep.append(tensor)
    address: int = tensor.data_ptr()
    return address


def _cumulative(name: str, tensor: Any, device: Any, backend: Backend, keep: list[Any]) -> tuple[int, int, int]:
    """(address, dtype code, number of sequences) of cumulative lengths."""
    kind = DTYPE_NAMES.get(tensor.dtype)
    if kind != "int32" and kind != "int64":
        raise TypeError(f"{name} is {dtype_name(tensor)}; pass int32 or int64")
    if tensor.ndim != 1 or tensor.shape[0] < 1:
        _wrong_rank(name, tensor, "(B + 1,)")
    if tensor.device != device:
        _wrong_device(name, tensor, device)
    return _address(tensor, backend, keep), 0 if kind == "int32" else 1, tensor.shape[0] - 1


def _table(name: str, tensor: Any, device: Any) -> tuple[int, int, int, int]:
    """(address, heads, entries, head stride) of a bucketed bias's table."""
    if DTYPE_NAMES.get(tensor.dtype) != "float32":
        raise TypeError(f"{name} is {dtype_name(tensor)}; a table of a bucketed bias is float32")
    if tensor.ndim != 2:
        _wrong_rank(name, tensor, "(H or 1, entries)")
    if tensor.device != device:
        _wrong_device(name, tensor, device)
    stride = tensor.stride()
    _check_last_stride(name, tensor, stride)
    heads, entries = tensor.shape
    if entries < 1:
        _wrong_rank(name, tensor, "(H or 1, entries) with at least one entry")
    return tensor.data_ptr(), heads, entries, 0 if heads == 1 else stride[0]


def _check_bias(flat: Flat, total_k: int, device: Any, backend: Backend, keep: list[Any]) -> tuple[Any, ...] | None:
    """The fields of warploom_bias as a tuple in which the addresses of gradients are still 0."""
    values, position, time, timestamps, time_bucket, kind, rows = *flat[3:6], *flat[13:15], *flat[28:30]
    if kind == _layout.NO_BIAS:
        return None
    if kind == _layout.BUCKETED_BIAS:
        position_fields, time_fields = (0, 0, 0, 0), (0, 0, 0, 0)
        timestamps_address = bucket_address = 0
        if position is not None:
            position_fields = _table("position", position, device)
        if time is not None:
            time_fields = _table("time", time, device)
            if timestamps is None:
                raise ValueError("timestamps is None; a time table needs int64 timestamps (Tk), one for each row of k")
            timestamps_address = _int64("timestamps", timestamps, total_k, device, backend, keep)
            if time_bucket is not None:
                bucket_address = _int64("time_bucket", time_bucket, time.shape[1] - 1, device, backend, keep)
        elif timestamps is not None or time_bucket is not None:
            which = "timestamps" if timestamps is not None else "time_bucket"
            raise ValueError(f"{which} is given without time; pass the table that it indexes, or leave it out")
        if position is None and time is None:
            raise ValueError("position and time are both None; a bucketed bias needs at least one table")
        p, t = position_fields, time_fields
        return (
            *(kind, _layout.FLOAT32, rows, 0, 0, 0, *(0,) * 10),
            *(p[0], 0, *p[1:], t[0], 0, *t[1:], timestamps_address, bucket_address),
        )
    dtype = DTYPE_CODES.get(values.dtype)
    if dtype is None:
        raise TypeError(f"bias is {dtype_name(values)}; it must be of q's dtype or float32")
    if values.device != device:
        _wrong_device("bias", values, device)
    shape, stride = values.shape, values.stride()
    if kind == _layout.DENSE_BIAS:
        if len(shape) != 4:
            _wrong_rank("bias", values, "(B or 1, H or 1, max_seqlen_k or max_seqlen_q, max_seqlen_k)")
        _check_last_stride("bias", values, stride)
        batch, heads, num_rows, num_columns = shape
        strides = (0 if batch == 1 else stride[0], 0 if heads == 1 else stride[1], stride[2])
        gradient_strides = (heads * num_rows * num_columns, num_rows * num_columns, num_columns)
    else:
        if len(shape) != 2:
            _wrong_rank("bias", values, "(H or 1, sum over the sequences of rows * pitch)")
        _check_last_stride("bias", values, stride)
        heads, num_columns = shape
        batch, num_rows = 1, 1
        strides = (0, 0 if heads == 1 else stride[0], 0)
        gradient_strides = (0, num_columns, 0)
    sizes = (batch, heads, num_rows, num_columns)
    return (kind, dtype, rows, 0, values.data_ptr(), 0, *sizes, *strides, *gradient_strides, *(0,) * 12)


def _int64(name: str, tensor: Any, size: int, device: Any, backend: Backend, keep: list[Any]) -> int:
    if DTYPE_NAMES.get(tensor.dtype) != "int64":
        raise TypeError(f"{name} is {dtype_name(tensor)}; pass int64")
    if tuple(tensor.shape) != (size,):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; here it must be ({size},)")
    if tensor.device != device:
        _wrong_device(name, tensor, device)
    return _address(tensor, backend, keep)


def _dense_length(name: str, given: int | None, length: int) -> int:
    if given is not None and given != length:
        raise ValueError(
            f"{name} = {given} but this dense batch has length {length}; leave {name} out, its shape says it"
        )
    return length


def describe(op: int, flat: Flat, backend: Backend) -> Shape:
    """Checks a call and lays out everything that its two passes share."""
    (
        q,
        k,
        v,
        _,
        _,
        _,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_q,
        seqused_k,
        num_contexts,
        num_targets,
        intervals,
        _,
        _,
        max_seqlen_q,
        max_seqlen_k,
        seqused_q_all,
        seqused_k_all,
        left,
        right,
        num_contexts_all,
        num_targets_all,
        target_group_size,
        from_history_end,
        alpha,
        deterministic,
        check_inputs,
        bias_kind,
        _,
    ) = flat[:30]

    dtype = q.dtype
    code = DTYPE_CODES.get(dtype)
    if code is None:
        raise TypeError(f"q is {dtype_name(q)}; pass float16 or bfloat16, or on the CPU float32")
    if k.dtype != dtype or v.dtype != dtype:
        name, tensor = ("k", k) if k.dtype != dtype else ("v", v)
        raise TypeError(f"{name} is {dtype_name(tensor)} and q is {dtype_name(q)}; q, k and v must agree")
    device = q.device
    if k.device != device or v.device != device:
        _wrong_device(*(("k", k) if k.device != device else ("v", v)), device)
    if device.type == "cpu":
        device_code, device_index, stream = _layout.CPU, 0, 0
    elif device.type == "cuda":
        _library.add_cuda_library_directories()
        device_code, device_index, stream = _layout.CUDA, device.index, backend.stream(device.index)
    else:
        raise RuntimeError(f"q is on {device}; the back ends serve CPU and CUDA tensors")

    keep: list[Any] = []
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    rank = len(q_shape)
    dense = rank == 4
    if rank != 3 and rank != 4:
        _wrong_rank("q", q, "(Tq, H, D) with cu_seqlens_q, or a dense batch (B, Lq, H, D)")
    if len(k_shape) != rank:
        _wrong_rank("k", k, "(B, Lk, Hkv, D)" if dense else "(Tk, Hkv, D)")
    if len(v_shape) != rank:
        _wrong_rank("v", v, "(B, Lk, Hkv, Dv)" if dense else "(Tk, Hkv, Dv)")
    if v_shape[:-1] != k_shape[:-1]:
        raise ValueError(f"v has shape {tuple(v_shape)} and k {tuple(k_shape)}; all but the last dimension must agree")
    heads, head_dim = q_shape[-2], q_shape[-1]
    key_heads, value_dim = k_shape[-2], v_shape[-1]
    if k_shape[-1] != head_dim:
        raise ValueError(f"k has head dimension {k_shape[-1]} and q {head_dim}; they must agree (v's is free)")
    q_stride, k_stride, v_stride = q.stride(), k.stride(), v.stride()
    _check_last_stride("q", q, q_stride)
    _check_last_stride("k", k, k_stride)
    _check_last_stride("v", v, v_stride)

    cu_q = cu_k = cu_q_dtype = cu_k_dtype = 0
    if dense:
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            name = "cu_seqlens_q" if cu_seqlens_q is not None else "cu_seqlens_k"
            raise ValueError(f"{name} is given with a 4-D q, a dense batch; leave it out, or pass q as (Tq, H, D)")
        batch, length_q = q_shape[0], q_shape[1]
        length_k = k_shape[1]
        if k_shape[0] != batch:
            raise ValueError(f"k has {k_shape[0]} sequences and q {batch}; they must agree")
        total_q, total_k = batch * length_q, batch * length_k
        max_seqlen_q = _dense_length("max_seqlen_q", max_seqlen_q, length_q)
        max_seqlen_k = _dense_length("max_seqlen_k", max_seqlen_k, length_k)
        out_shape: tuple[int, ...] = (batch, length_q, heads, value_dim)
        lse_shape: tuple[int, ...] = (batch, heads, length_q)
    else:
        if cu_seqlens_q is None:
            raise ValueError(
                f"cu_seqlens_q is None with q of shape {tuple(q_shape)}; pass cumulative lengths (B + 1), "
                "or q, k, v as 4-D"
            )
        cu_q, cu_q_dtype, batch = _cumulative("cu_seqlens_q", cu_seqlens_q, device, backend, keep)
        if cu_seqlens_k is not None:
            cu_k, cu_k_dtype, batch_k = _cumulative("cu_seqlens_k", cu_seqlens_k, device, backend, keep)
            if batch_k != batch:
                raise ValueError(
                    f"cu_seqlens_k has {batch_k + 1} entries and cu_seqlens_q {batch + 1}; they must agree"
                )
        total_q, total_k = q_shape[0], k_shape[0]
        if max_seqlen_q is None:
            max_seqlen_q = _layout.FROM_CU_SEQLENS
        if max_seqlen_k is None:
            max_seqlen_k = _layout.FROM_CU_SEQLENS
        out_shape = (total_q, heads, value_dim)
        lse_shape = (heads, total_q)

    used_q = used_k = contexts = targets = intervals_address = interval_heads = num_intervals = divisor_rows_address = 0
    if seqused_q is not None:
        used_q = _check_integers("seqused_q", seqused_q, (batch,), device, backend, keep)
    if seqused_k is not None:
        used_k = _check_integers("seqused_k", seqused_k, (batch,), device, backend, keep)
    if num_contexts is not None:
        contexts = _check_integers("num_contexts", num_contexts, (batch,), device, backend, keep)
    if num_targets is not None:
        targets = _check_integers("num_targets", num_targets, (batch,), device, backend, keep)
    if intervals is not None:
        if intervals.ndim != 4 or intervals.shape[3] != 2:
            _wrong_rank("intervals", intervals, "(H or 1, Tq, n, 2)")
        interval_heads, _, num_intervals, _ = intervals.shape
        wanted = (interval_heads, total_q, num_intervals, 2)
        intervals_address = _check_integers("intervals", intervals, wanted, device, backend, keep)
        if interval_heads not in (1, heads):
            raise ValueError(f"intervals has {interval_heads} heads; it must have 1 or q's {heads}")
        # Without elements (n = 0: no row sees anything) the library still tells an interval mask from none by this
        # address.
        intervals_address = intervals_address or _SOMEWHERE

    flags = (
        (_layout.HAS_ALPHA if alpha is not None else 0)
        | (_layout.WINDOW_FROM_HISTORY_END if from_history_end else 0)
        | (_layout.DETERMINISTIC if deterministic else 0)
        | (_layout.CHECK_INPUTS if check_inputs else 0)
    )
    softcap, divisor = 0.0, None
    if op == _layout.HSTU:
        divisor_rows, divisor, bias_scaled = flat[30:]
        if divisor_rows is not None:
            if DTYPE_NAMES.get(divisor_rows.dtype) != "float32":
                raise TypeError(f"divisor is {dtype_name(divisor_rows)}; pass a number or a float32 tensor (Tq)")
            if tuple(divisor_rows.shape) != (total_q,):
                raise ValueError(f"divisor has shape {tuple(divisor_rows.shape)}; here it must be ({total_q},)")
            if divisor_rows.device != device:
                _wrong_device("divisor", divisor_rows, device)
            divisor_rows_address = _address(divisor_rows, backend, keep)
        if divisor is not None:
            flags |= _layout.HAS_DIVISOR
        if not bias_scaled:
            flags |= _layout.BIAS_NOT_SCALED
    else:
        (softcap,) = flat[30:]
    bias = None if bias_kind == _layout.NO_BIAS else _check_bias(flat, total_k, device, backend, keep)

    head = (
        *(code, device_code, device_index, flags, stream),
        *(batch, heads, key_heads, head_dim, value_dim, total_q, total_k, max_seqlen_q, max_seqlen_k),
    )
    if dense:
        inputs = (q.data_ptr(), *q_stride[:3], k.data_ptr(), *k_stride[:3], v.data_ptr(), *v_stride[:3])
    else:
        inputs = (q.data_ptr(), 0, *q_stride[:2], k.data_ptr(), 0, *k_stride[:2], v.data_ptr(), 0, *v_stride[:2])
    tail = (
        *(cu_q, cu_k, cu_q_dtype, cu_k_dtype, used_q, used_k),
        -1 if seqused_q_all is None else seqused_q_all,
        -1 if seqused_k_all is None else seqused_k_all,
        _layout.UNBOUNDED if left is None else left,
        _layout.UNBOUNDED if right is None else right,
        *(contexts, targets),
        -1 if num_contexts_all is None else num_contexts_all,
        -1 if num_targets_all is None else num_targets_all,
        *(target_group_size, intervals_address, interval_heads, num_intervals),
        *(0.0 if alpha is None else alpha, softcap, 0.0 if divisor is None else divisor, divisor_rows_address),
    )
    return Shape(head, inputs, tail, out_shape, lse_shape, dense, bias, keep)


def _strided(tensor: Any, shape: Shape) -> tuple[int, ...]:
    """A warploom_tensor's fields."""
    stride = tensor.stride()
    if shape.dense:
        return (tensor.data_ptr(), stride[0], stride[1], stride[2])
    return (tensor.data_ptr(), 0, stride[0], stride[1])


def _lse_fields(lse: Any, shape: Shape) -> tuple[int, ...]:
    if lse is None:
        return (0, 0, 0)
    stride = lse.stride()
    return (lse.data_ptr(), stride[0], stride[1]) if shape.dense else (lse.data_ptr(), 0, stride[0])


def pack_forward(op: int, shape: Shape, out: Any, lse: Any) -> bytes:
    return b"".join(
        (
            _layout.TENSORS_FORWARD.pack(
                *(_layout.ABI_VERSION, _layout.STRUCT_BYTES, op, _layout.FORWARD, *shape.head, *shape.inputs),
                *_strided(out, shape),
                *_lse_fields(lse, shape),
            ),
            _layout.LENGTHS_MASK_SCALARS.pack(*shape.tail),
            _layout.EMPTY_BIAS if shape.bias is None else _layout.BIAS.pack(*shape.bias),
            _layout.EMPTY_TAIL,
        )
    )


def forward(op: int, flat: Flat, backend: Backend, want_lse: bool) -> tuple[Any, Any]:
    """Runs a forward pass: (out, lse or None)."""
    shape = describe(op, flat, backend)
    out = backend.empty(shape.out, flat[0])
    lse = backend.empty_float32(shape.lse, flat[0]) if want_lse else None
    status = _library.run(pack_forward(op, shape, out, lse))
    if status != 0:
        _library.raise_last_error(status)
    return out, lse


def pack_backward(op: int, shape: Shape, dout: Any, out: Any, lse: Any, results: tuple[Any, ...]) -> bytes:
    dq, dk, dv, dbias, dposition, dtime = results
    out_fields = (0, 0, 0, 0) if out is None else _strided(out, shape)
    bias = _layout.EMPTY_BIAS
    if shape.bias is not None:
        fields = list(shape.bias)
        fields[_VALUES_GRAD] = 0 if dbias is None else dbias.data_ptr()
        fields[_POSITION_GRAD] = 0 if dposition is None else dposition.data_ptr()
        fields[_TIME_GRAD] = 0 if dtime is None else dtime.data_ptr()
        bias = _layout.BIAS.pack(*fields)
    return b"".join(
        (
            _layout.TENSORS_BACKWARD.pack(
                *(
                    _layout.ABI_VERSION,
                    _layout.STRUCT_BYTES,
                    op,
                    _layout.BACKWARD,
                    *shape.head,
                    *shape.inputs,
                    *out_fields,
                ),
                *(*_strided(dout, shape), *_strided(dq, shape), *_strided(dk, shape), *_strided(dv, shape)),
                *_lse_fields(lse, shape),
            ),
            _layout.LENGTHS_MASK_SCALARS.pack(*shape.tail),
            bias,
            _layout.EMPTY_TAIL,
        )
    )


def _check_result(name: str, tensor: Any, shape: tuple[int, ...], like: Any, dtype: Any, backend: Backend) -> Any:
    """dout, out or lse as the library takes it: q's device, the right shape and dtype, last dimension contiguous."""
    if tensor.dtype != dtype and dtype_name(tensor) != dtype:
        raise TypeError(f"{name} is {dtype_name(tensor)}; here it must be {DTYPE_NAMES.get(dtype, dtype)}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; here it must be {shape}")
    if tensor.device != like.device:
        _wrong_device(name, tensor, like.device)
    return backend.contiguous(tensor) if tensor.stride()[-1] != 1 and shape[-1] > 1 else tensor


def backward(
    op: int, flat: Flat, backend: Backend, dout: Any, out: Any, lse: Any, wanted: tuple[bool, bool, bool]
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Runs a backward pass: (dq, dk, dv, dbias, dposition, dtime), None for what is absent or not wanted.

    wanted: whether the gradients of bias, position and time are.
    """
    q, k, v, values, position, time = flat[:6]
    shape = describe(op, flat, backend)
    dout = _check_result("dout", dout, shape.out, q, q.dtype, backend)
    if op == _layout.SOFTMAX:
        out = _check_result("out", out, shape.out, q, q.dtype, backend)
        lse = _check_result("lse", lse, shape.lse, q, "float32", backend)
    dq, dk, dv = (backend.empty(tuple(x.shape), x) for x in (q, k, v))
    dbias, dposition, dtime = (
        backend.empty(tuple(x.shape), x) if x is not None and want else None
        for x, want in zip((values, position, time), wanted, strict=True)
    )
    results = (dq, dk, dv, dbias, dposition, dtime)
    call = pack_backward(op, shape, dout, out, lse, results)
    status = _library.run(call)
    if status != 0:
        _library.raise_last_error(status)
    return results


def gradients(flat: Flat, results: tuple[Any, ...]) -> Gradients:
    """The user's form of `backward`'s result."""
    dq, dk, dv, dbias, dposition, dtime = results
    return Gradients(dq, dk, dv, (dposition, dtime) if flat[BIAS_KIND] == _layout.BUCKETED_BIAS else dbias)
