"""Checks a flat call's tensors and lays out the fields that its two passes share.

Tensors here are anything with torch's small protocol (shape, stride() in elements, dtype, device, ndim, data_ptr(),
...): torch tensors as they are, every other array through ``_arrays.View``. What differs between the two (allocating,
converting) is the back end's. Kinds, ranks, dtypes, devices and shapes are checked here; values are checked by the
library, which says so in its own words.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, NoReturn, Protocol

from . import _functions, _layout, _library
from ._arguments import BIAS_KIND, MASK_FUNCTION, NUM_COMMON, NUM_DIFFERENTIABLE, SCORE_FUNCTION, Flat

DTYPE_CODES: dict[Any, int] = {"float32": _layout.FLOAT32, "float16": _layout.FLOAT16, "bfloat16": _layout.BFLOAT16}
# dtype -> its name, for the types that a rule names. The torch back end adds torch's.
DTYPE_NAMES: dict[Any, str] = {name: name for name in ("float32", "float16", "bfloat16", "int32", "int64")}

_somewhere = ctypes.c_int64()
_SOMEWHERE = ctypes.addressof(_somewhere)
_FROM_CU_SEQLENS, _NOT_GIVEN, _UNBOUNDED = _layout.FROM_CU_SEQLENS, _layout.NOT_GIVEN, _layout.UNBOUNDED
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Backend(Protocol):
    """What the arrays of one library need."""

    def empty(self, shape: tuple[int, ...], like: Any) -> Any: ...
    def empty_float32(self, shape: tuple[int, ...], like: Any) -> Any: ...
    def int32(self, tensor: Any) -> Any:
        """An int64 tensor as int32, values beyond it clamped: a clamped one is still out of every rule's range."""

    def contiguous(self, tensor: Any) -> Any: ...
    def stream(self, device_index: int) -> int:
        """The current CUDA stream's handle."""


class Description(NamedTuple):
    """A checked call: the pieces of its packed form, and what the allocation of its results needs."""

    head: tuple[Any, ...]  # dtype .. max_seqlen_k of warploom_attention
    inputs: tuple[int, ...]  # the fields of q, k and v
    tail: tuple[Any, ...]  # cu_seqlens_q .. divisor_rows
    bias: tuple[Any, ...] | None  # warploom_bias with no gradient's address
    functions: tuple[int, ...] | None  # score and mask_function
    out: tuple[int, ...]  # shapes
    lse: tuple[int, ...]
    dense: bool
    keep: list[Any]  # tensors made for this call, which live until it has run


# batch, total_q, total_k, max_seqlen_q, max_seqlen_k
Rows = tuple[int, int, int, int, int]


# --- what is wrong ----------------------------------------------------------------------------------------------------


def dtype_name(tensor: Any) -> str:
    return DTYPE_NAMES.get(tensor.dtype) or str(tensor.dtype)


def _wrong_rank(name: str, tensor: Any, rule: str) -> NoReturn:
    raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {rule}")


def check_shape(name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; in this call it must be {shape}")


def check_device(name: str, tensor: Any, device: Any) -> None:
    if tensor.device != device:
        raise RuntimeError(f"{name} is on {tensor.device} and q on {device}; move every tensor of a call to one device")


def _check_last_stride(name: str, tensor: Any, stride: tuple[int, ...]) -> None:
    # An array without elements has any strides.
    if stride[-1] != 1 and tensor.shape[-1] > 1 and 0 not in tensor.shape:
        raise ValueError(
            f"{name} has strides {tuple(stride)}; its last dimension must be contiguous (stride 1), "
            f"pass {name}.contiguous()"
        )


# --- numbers ----------------------------------------------------------------------------------------------------------


def _longest(name: str, length: int) -> int:
    if length < 0:
        raise ValueError(
            f"{name} = {length} is negative; pass the longest sequence's length, or None to read cu_seqlens"
        )
    return _int64(length)


def _dense_longest(name: str, given: int | None, length: int) -> int:
    if given is not None and given != length:
        raise ValueError(f"{name} = {given} but this dense batch has length {length}; leave {name} out")
    return length


def _for_all(name: str, count: int) -> int:
    if count < 0:
        raise ValueError(f"{name} = {count} is negative; pass 0 or more, or None")
    if count >= 2**31:
        raise ValueError(f"{name} = {count} exceeds every sequence; pass a count <= the sequences' lengths")
    return count


def _int64(number: int) -> int:
    """A number as the ABI's int64: one beyond it means the same as the nearest."""
    return number if _INT64_MIN <= number <= _INT64_MAX else max(_INT64_MIN, min(_INT64_MAX, number))


# --- tensors ----------------------------------------------------------------------------------------------------------


class _Auxiliary:
    """Addresses of a call's auxiliary tensors, converted where they need it; 0 for an absent one."""

    __slots__ = ("backend", "device", "keep")

    def __init__(self, device: Any, backend: Backend) -> None:
        self.device = device
        self.backend = backend
        self.keep: list[Any] = []

    def address(self, tensor: Any) -> int:
        """Of the tensor's contiguous form."""
        if not tensor.is_contiguous():
            tensor = self.backend.contiguous(tensor)
        self.keep.append(tensor)
        address: int = tensor.data_ptr()
        return address

    def checked(self, name: str, tensor: Any, dtype: str, shape: tuple[int, ...], rule: str) -> int:
        if DTYPE_NAMES.get(tensor.dtype) != dtype:
            raise TypeError(f"{name} is {dtype_name(tensor)}; pass {rule}")
        check_shape(name, tensor, shape)
        check_device(name, tensor, self.device)
        return self.address(tensor)

    def int32(self, name: str, tensor: Any, shape: tuple[int, ...]) -> int:
        if DTYPE_NAMES.get(tensor.dtype) == "int64":
            check_device(name, tensor, self.device)
            tensor = self.backend.int32(tensor)
        return self.checked(name, tensor, "int32", shape, "int32 (int64 is converted)")

    def cumulative(self, name: str, tensor: Any) -> tuple[int, int, int]:
        """(address, dtype code, number of sequences) of cumulative lengths."""
        kind = DTYPE_NAMES.get(tensor.dtype)
        if kind != "int32" and kind != "int64":
            raise TypeError(f"{name} is {dtype_name(tensor)}; pass int32 or int64")
        if tensor.ndim != 1 or tensor.shape[0] < 1:
            _wrong_rank(name, tensor, "(B + 1,)")
        check_device(name, tensor, self.device)
        code = _layout.INT32 if kind == "int32" else _layout.INT64
        return self.address(tensor), code, tensor.shape[0] - 1

    def table(self, name: str, tensor: Any) -> tuple[int, int, int, int]:
        """(address, heads, entries, head stride) of a bucketed bias's table."""
        if tensor is None:
            return (0, 0, 0, 0)
        if DTYPE_NAMES.get(tensor.dtype) != "float32":
            raise TypeError(f"{name} is {dtype_name(tensor)}; a table of a bucketed bias is float32")
        if tensor.ndim != 2 or tensor.shape[1] < 1:
            _wrong_rank(name, tensor, "(H or 1, entries) with at least one entry")
        check_device(name, tensor, self.device)
        stride = tensor.stride()
        _check_last_stride(name, tensor, stride)
        heads, entries = tensor.shape
        return tensor.data_ptr(), heads, entries, 0 if heads == 1 else stride[0]


def _check_qkv(q: Any, k: Any, v: Any) -> int:
    """The dtype's code, of tensors that agree in dtype, device and shape."""
    dtype, device = q.dtype, q.device
    code = DTYPE_CODES.get(dtype)
    if code is None:
        raise TypeError(f"q is {dtype_name(q)}; pass float16 or bfloat16, or on the CPU float32")
    if k.dtype != dtype or v.dtype != dtype:
        name, tensor = ("k", k) if k.dtype != dtype else ("v", v)
        raise TypeError(f"{name} is {dtype_name(tensor)} and q is {dtype_name(q)}; q, k and v must agree")
    if k.device != device or v.device != device:
        check_device("k", k, device)
        check_device("v", v, device)
    q_shape, k_shape, v_shape = q.shape, k.shape, v.shape
    rank = len(q_shape)
    if rank != 3 and rank != 4:
        _wrong_rank("q", q, "(Tq, H, D) with cu_seqlens_q, or a dense batch (B, Lq, H, D)")
    if len(k_shape) != rank:
        _wrong_rank("k", k, "(Tk, Hkv, D) beside a 3-D q" if rank == 3 else "(B, Lk, Hkv, D) beside a 4-D q")
    if v_shape[:-1] != k_shape[:-1]:
        raise ValueError(f"v has shape {tuple(v_shape)} and k {tuple(k_shape)}; all but the last dimension must agree")
    if k_shape[-1] != q_shape[-1]:
        raise ValueError(f"k has head dimension {k_shape[-1]} and q {q_shape[-1]}; they must agree (v's is free)")
    return code


def _device_fields(q: Any, backend: Backend) -> tuple[int, int, int]:
    """(device code, index, stream)"""
    if q.is_cpu:
        return _layout.CPU, 0, 0
    device = q.device
    if device.type == "cuda":
        _library.add_cuda_library_directories()
        return _layout.CUDA, device.index, backend.stream(device.index)
    raise RuntimeError(f"q is on {device}; the back ends serve CPU and CUDA tensors")


def _dense_rows(q: Any, k: Any, flat: Flat) -> Rows:
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = *flat[6:8], *flat[15:17]
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        name = "cu_seqlens_q" if cu_seqlens_q is not None else "cu_seqlens_k"
        raise ValueError(f"{name} is given with a 4-D q, a dense batch; leave it out, or pass q as (Tq, H, D)")
    (batch, length_q), (batch_k, length_k) = q.shape[:2], k.shape[:2]
    if batch_k != batch:
        raise ValueError(f"k has {batch_k} sequences and q {batch}; they must agree")
    longest_q = _dense_longest("max_seqlen_q", max_seqlen_q, length_q)
    longest_k = _dense_longest("max_seqlen_k", max_seqlen_k, length_k)
    return batch, batch * length_q, batch * length_k, longest_q, longest_k


def _jagged_rows(q: Any, k: Any, flat: Flat, auxiliary: _Auxiliary) -> tuple[Rows, tuple[int, int, int, int]]:
    """The rows, and (cu_seqlens_q, cu_seqlens_k, their dtypes)."""
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = *flat[6:8], *flat[15:17]
    if cu_seqlens_q is None:
        raise ValueError(
            f"cu_seqlens_q is None with q of shape {tuple(q.shape)}; pass cumulative lengths (B + 1), or q, k, v as 4-D"
        )
    cu_q, dtype_q, batch = auxiliary.cumulative("cu_seqlens_q", cu_seqlens_q)
    cu_k = dtype_k = 0
    if cu_seqlens_k is not None:
        cu_k, dtype_k, batch_k = auxiliary.cumulative("cu_seqlens_k", cu_seqlens_k)
        if batch_k != batch:
            raise ValueError(f"cu_seqlens_k has {batch_k + 1} entries and cu_seqlens_q {batch + 1}; they must agree")
    longest_q = _FROM_CU_SEQLENS if max_seqlen_q is None else _longest("max_seqlen_q", max_seqlen_q)
    longest_k = _FROM_CU_SEQLENS if max_seqlen_k is None else _longest("max_seqlen_k", max_seqlen_k)
    return (batch, q.shape[0], k.shape[0], longest_q, longest_k), (cu_q, cu_k, dtype_q, dtype_k)


def _intervals(intervals: Any, heads: int, total_q: int, auxiliary: _Auxiliary) -> tuple[int, int, int]:
    """(address, heads, intervals a row)"""
    if intervals.ndim != 4 or intervals.shape[3] != 2:
        _wrong_rank("intervals", intervals, "(H or 1, Tq, n, 2)")
    interval_heads, _, count, _ = intervals.shape
    if interval_heads not in (1, heads):
        raise ValueError(f"intervals has {interval_heads} heads; it must have 1 or q's {heads}")
    address = auxiliary.int32("intervals", intervals, (interval_heads, total_q, count, 2))
    # Without elements (n = 0: no row sees anything) the library tells an interval mask from none by this address.
    return address or _SOMEWHERE, interval_heads, count


def _lengths_and_mask(
    flat: Flat, cumulative: tuple[int, int, int, int], batch: int, total_q: int, heads: int, auxiliary: _Auxiliary
) -> tuple[Any, ...]:
    """The fields cu_seqlens_q .. num_intervals of warploom_attention."""
    seqused_q, seqused_k, num_contexts, num_targets, intervals = flat[8:13]
    used_q_all, used_k_all, left, right, contexts_all, targets_all, group_size = flat[17:24]
    per_sequence = (batch,)
    return (
        *cumulative,
        0 if seqused_q is None else auxiliary.int32("seqused_q", seqused_q, per_sequence),
        0 if seqused_k is None else auxiliary.int32("seqused_k", seqused_k, per_sequence),
        _NOT_GIVEN if used_q_all is None else _for_all("seqused_q", used_q_all),
        _NOT_GIVEN if used_k_all is None else _for_all("seqused_k", used_k_all),
        _UNBOUNDED if left is None else _int64(left),
        _UNBOUNDED if right is None else _int64(right),
        0 if num_contexts is None else auxiliary.int32("num_contexts", num_contexts, per_sequence),
        0 if num_targets is None else auxiliary.int32("num_targets", num_targets, per_sequence),
        _NOT_GIVEN if contexts_all is None else _for_all("num_contexts", contexts_all),
        _NOT_GIVEN if targets_all is None else _for_all("num_targets", targets_all),
        group_size if group_size == 1 else _int64(group_size),
        *((0, 0, 0) if intervals is None else _intervals(intervals, heads, total_q, auxiliary)),
    )


def _flags_and_scalars(
    op: int, flat: Flat, total_q: int, auxiliary: _Auxiliary
) -> tuple[int, tuple[float, float, float, int]]:
    """flags, and (alpha, softcap, divisor, divisor_rows)."""
    from_history_end, alpha, deterministic, check_inputs = flat[24:28]
    flags = 0 if alpha is None else _layout.HAS_ALPHA
    if from_history_end:
        flags |= _layout.WINDOW_FROM_HISTORY_END
    if deterministic:
        flags |= _layout.DETERMINISTIC
    if check_inputs:
        flags |= _layout.CHECK_INPUTS
    alpha = 0.0 if alpha is None else alpha
    if op == _layout.SOFTMAX:
        return flags, (alpha, flat[NUM_COMMON], 0.0, 0)
    divisor_rows, divisor, bias_scaled = flat[NUM_COMMON:SCORE_FUNCTION]
    divisor_address = 0
    if divisor_rows is not None:
        rule = "a number or a float32 tensor (Tq)"
        divisor_address = auxiliary.checked("divisor", divisor_rows, "float32", (total_q,), rule)
    if divisor is not None:
        flags |= _layout.HAS_DIVISOR
    if not bias_scaled:
        flags |= _layout.BIAS_NOT_SCALED
    return flags, (alpha, 0.0, 0.0 if divisor is None else divisor, divisor_address)


# --- bias -------------------------------------------------------------------------------------------------------------

# Places of the gradients' addresses among the fields of warploom_bias.
VALUES_GRAD, POSITION_GRAD, TIME_GRAD = 5, 17, 22


# A multiple of the 16 that kernels ask for: what is written of a row then ends where a line of L2 does.
GRADIENT_ROW_BYTES = 128


def pads_gradients(values: Any) -> bool:
    """Whether the rows of a dense bias's gradient begin at multiples of GRADIENT_ROW_BYTES: on a GPU."""
    return bool(values.device.type == "cuda")


def gradient_pitch(values: Any) -> Any:
    """Elements from row to row of a dense bias's gradient."""
    columns = values.shape[-1]
    if not pads_gradients(values):
        return columns
    chunk = GRADIENT_ROW_BYTES // (4 if DTYPE_NAMES.get(values.dtype) == "float32" else 2)
    return (columns + chunk - 1) // chunk * chunk


def _bias_fields(flat: Flat, total_k: int, auxiliary: _Auxiliary) -> tuple[Any, ...]:
    """The fields of warploom_bias, in which the addresses of gradients are still 0."""
    values, position, time = flat[3:NUM_DIFFERENTIABLE]
    kind, rows = flat[BIAS_KIND:MASK_FUNCTION]
    if kind == _layout.BUCKETED_BIAS:
        timestamps, time_bucket = flat[13:15]
        tables = _bucketed_fields(position, time, timestamps, time_bucket, total_k, auxiliary)
        return (kind, _layout.FLOAT32, rows, *(0,) * 13, *tables)
    dtype = DTYPE_CODES.get(values.dtype)
    if dtype is None:
        raise TypeError(f"bias is {dtype_name(values)}; it must be of q's dtype or float32")
    check_device("bias", values, auxiliary.device)
    shape, stride = values.shape, values.stride()
    if kind == _layout.DENSE_BIAS:
        if len(shape) != 4:
            _wrong_rank("bias", values, "(B or 1, H or 1, max_seqlen_k or max_seqlen_q, max_seqlen_k)")
        batch, heads, num_rows, num_columns = shape
        strides = (0 if batch == 1 else stride[0], 0 if heads == 1 else stride[1], stride[2])
        pitch = gradient_pitch(values)
        gradient_strides = (heads * num_rows * pitch, num_rows * pitch, pitch)
    else:
        if len(shape) != 2:
            _wrong_rank("bias", values, "(H or 1, sum over the sequences of rows * pitch)")
        heads, num_columns = shape
        batch, num_rows = 1, 1
        strides = (0, 0 if heads == 1 else stride[0], 0)
        gradient_strides = (0, num_columns, 0)
    _check_last_stride("bias", values, stride)
    sizes = (batch, heads, num_rows, num_columns)
    return (kind, dtype, rows, 0, values.data_ptr(), 0, *sizes, *strides, *gradient_strides, *(0,) * 12)


def _bucketed_fields(
    position: Any, time: Any, timestamps: Any, time_bucket: Any, total_k: int, auxiliary: _Auxiliary
) -> tuple[int, ...]:
    """The fields position .. time_bucket of warploom_bias."""
    if position is None and time is None:
        raise ValueError("position and time are both None; a bucketed bias needs at least one table")
    position_address, *position_sizes = auxiliary.table("position", position)
    time_address, *time_sizes = auxiliary.table("time", time)
    timestamps_address = bucket_address = 0
    if time is None:
        for name, value in (("timestamps", timestamps), ("time_bucket", time_bucket)):
            if value is not None:
                raise ValueError(f"{name} is given without time; pass the table that it indexes, or leave it out")
    elif timestamps is None:
        raise ValueError("timestamps is None; a time table needs int64 timestamps (Tk), one for each row of k")
    else:
        timestamps_address = auxiliary.checked("timestamps", timestamps, "int64", (total_k,), "int64")
        if time_bucket is not None:
            bucket_address = auxiliary.checked("time_bucket", time_bucket, "int64", (time.shape[1] - 1,), "int64")
    return (
        *(position_address, 0, *position_sizes),
        *(time_address, 0, *time_sizes),
        *(timestamps_address, bucket_address),
    )


# --- functions --------------------------------------------------------------------------------------------------------


def _function_fields(op: int, flat: Flat, auxiliary: _Auxiliary) -> tuple[int, ...] | None:
    """The fields score and mask_function of warploom_attention; None without either."""
    text, names, values = flat[MASK_FUNCTION:NUM_COMMON]
    score, slope, score_names, score_values = flat[SCORE_FUNCTION:] if op == _layout.HSTU else (None,) * 4
    if text is None and score is None:
        return None
    fields: tuple[int, ...] = ()
    for kind, source in (("score", (score, slope, score_names, score_values)), ("mask", (text, None, names, values))):
        if source[0] is None:
            fields += _layout.NO_FUNCTION
            continue
        keep, own = _functions.structure(kind, *source)
        auxiliary.keep.append(keep)
        fields += own
    return fields


# --- a call -----------------------------------------------------------------------------------------------------------


def _input_fields(name: str, tensor: Any, dense: bool) -> tuple[int, ...]:
    stride = tensor.stride()
    if stride[-1] != 1:
        _check_last_stride(name, tensor, stride)
    if dense:
        return (tensor.data_ptr(), stride[0], stride[1], stride[2])
    return (tensor.data_ptr(), 0, stride[0], stride[1])


def describe(op: int, flat: Flat, backend: Backend) -> Description:
    """Checks a call and lays out everything that its two passes share."""
    q, k, v = flat[:3]
    code = _check_qkv(q, k, v)
    device = q.device
    auxiliary = _Auxiliary(device, backend)
    q_shape, value_dim = q.shape, v.shape[-1]
    heads, head_dim = q_shape[-2:]
    dense = len(q_shape) == 4
    if dense:
        rows, cumulative = _dense_rows(q, k, flat), (0, 0, 0, 0)
        lse_shape: tuple[int, ...] = (q_shape[0], heads, q_shape[1])
    else:
        rows, cumulative = _jagged_rows(q, k, flat, auxiliary)
        lse_shape = (heads, q_shape[0])
    batch, total_q, total_k, max_seqlen_q, max_seqlen_k = rows
    inputs = (*_input_fields("q", q, dense), *_input_fields("k", k, dense), *_input_fields("v", v, dense))
    lengths_and_mask = _lengths_and_mask(flat, cumulative, batch, total_q, heads, auxiliary)
    flags, scalars = _flags_and_scalars(op, flat, total_q, auxiliary)
    bias = None if flat[BIAS_KIND] == _layout.NO_BIAS else _bias_fields(flat, total_k, auxiliary)
    functions = _function_fields(op, flat, auxiliary)
    device_code, device_index, stream = _device_fields(q, backend)
    if flat[BIAS_KIND] == _layout.DENSE_BIAS and pads_gradients(flat[3]):
        flags |= _layout.BIAS_GRAD_PADDED
    return Description(
        (
            *(code, device_code, device_index, flags, stream),
            *(batch, heads, k.shape[-2], head_dim, value_dim, total_q, total_k, max_seqlen_q, max_seqlen_k),
        ),
        inputs,
        (*lengths_and_mask, *scalars),
        bias,
        functions,
        (*q_shape[:-1], value_dim),
        lse_shape,
        dense,
        auxiliary.keep,
    )
