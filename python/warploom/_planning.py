"""Devices, threads, and what a call would do without running it."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any, NamedTuple

from . import _arrays, _attention, _call, _describe, _dlpack, _layout, _library
from ._arguments import TENSOR_NAMES, Flat, flatten, hstu_extras, is_integer, softmax_extras
from ._arrays import Device, View
from ._masks import Mask

__all__ = ["devices", "explain", "get_num_threads", "info", "set_num_threads", "warmup"]

# The address of tensors that are described by their shapes: aligned, and never read.
_NOWHERE = 4096

# Arguments whose values decide (the library reads them on the host): a list of ints, never a shape.
_VALUES = {
    "cu_seqlens_q": "int64",
    "cu_seqlens_k": "int64",
    "seqused_q": "int32",
    "seqused_k": "int32",
    "num_contexts": "int32",
    "num_targets": "int32",
    "time_bucket": "int64",
}
_SHAPE_DTYPES = {
    "position": "float32",
    "time": "float32",
    "intervals": "int32",
    "timestamps": "int64",
    "divisor": "float32",
}


class _Described(NamedTuple):
    """dtype and device of the tensors that are given as shapes or lists."""

    dtype: str
    device: Device


def devices() -> list[dict[str, Any]]:
    """The devices that calls can run on, the CPU first: dicts with at least ``name``, ``kind`` ("cpu" or "cuda") and
    ``architecture``. Looks for CUDA; never raises because there is none."""
    _library.add_cuda_library_directories()
    found: list[dict[str, Any]] = _library.json_text("warploom_devices")
    return found


def info() -> dict[str, Any]:
    """What was found on this machine: libraries searched and why one was refused, the cache, settings, versions."""
    _library.add_cuda_library_directories()
    found: dict[str, Any] = _library.json_text("warploom_info")
    return found


def set_num_threads(count: int) -> None:
    """Threads of the CPU back end in this process; 0 is as many as the process may run on. Results never depend on it.

    Raises:
        ValueError: count is negative. TypeError: it is no int.
    """
    if not is_integer(count):
        raise TypeError(f"count is {count!r}; pass an int, 0 for all processors")
    if count >= 2**31:
        raise ValueError(f"count = {count} is no number of threads; pass 0 for all processors")
    _library.check(_library.library.warploom_set_num_threads(max(int(count), -1)))


def get_num_threads() -> int:
    """Threads of the CPU back end."""
    return int(_library.library.warploom_get_num_threads())


def _is_shape(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_integer(size) for size in value)


def _list_view(name: str, values: list[int] | tuple[int, ...], dtype: str, device: Device) -> View:
    limit = 2 ** (8 * _dlpack.item_bytes(dtype) - 1)
    for place, value in enumerate(values):
        if not -limit <= value < limit:
            raise ValueError(f"{name}[{place}] = {value} does not fit {dtype}")
    array = _dlpack.Array((len(values),), dtype)
    (_arrays.ELEMENTS[dtype] * len(values)).from_address(array.address)[:] = values
    return View(array.address, array.shape, (1,), dtype, device, array)


def _spec(name: str, value: Any, described: _Described) -> View:
    """An argument as a View: a real array's own, or one that stands for a shape or for a list of numbers."""
    if name in _VALUES and isinstance(value, (list, tuple)) and all(is_integer(entry) for entry in value):
        return _list_view(name, value, _VALUES[name], described.device)
    if name in _VALUES and isinstance(value, list):
        raise TypeError(f"{name} is a list that holds other things than ints; pass ints or an array")
    if _is_shape(value):
        if name in _VALUES:
            raise TypeError(f"{name} decides the plan by its values; pass a list of ints or an array")
        dtype = _SHAPE_DTYPES.get(name, described.dtype)
        return View(_NOWHERE, value, _dlpack.contiguous_strides(value), dtype, described.device, None)
    torch_backend = _attention.torch_if_imported()
    if torch_backend is not None and torch_backend.is_tensor(value):
        device = Device(value.device.type, value.device.index or 0)
        return View(value.data_ptr(), tuple(value.shape), value.stride(), _describe.dtype_name(value), device, value)
    return _arrays.view(name, value)


class _Planner(_arrays.HostArrays):
    """Conversions of real host arrays; what is on a GPU is never read for a plan."""

    def int32(self, tensor: View) -> View:
        if tensor.device.type != "cpu":
            return View(_NOWHERE, tensor.shape, _dlpack.contiguous_strides(tensor.shape), "int32", tensor.device, None)
        return super().int32(tensor)

    def contiguous(self, tensor: View) -> View:
        if tensor.device.type != "cpu":
            return View(
                _NOWHERE, tensor.shape, _dlpack.contiguous_strides(tensor.shape), tensor.dtype, tensor.device, None
            )
        return super().contiguous(tensor)

    def stream(self, device_index: int) -> int:
        return 0


def _device(text: Any) -> Device:
    kind, _, index = str(text).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f'device = "{text}" is unknown; pass "cpu", "cuda" or "cuda:N"')
    return Device(kind, int(index or 0))


def _longest(cumulative: View, given: int | None) -> int | None:
    """max_seqlen from a list of lengths, where the library could not read it itself."""
    if given is not None or cumulative.device.type == "cpu" or not isinstance(cumulative.owner, _dlpack.Array):
        return given
    values = (ctypes.c_int64 * cumulative.shape[0]).from_address(cumulative.data_ptr())
    return max((end - begin for begin, end in pairwise(values)), default=0)


def _pack(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    op: str,
    backward: bool,
    dtype: str,
    device: Any,
    keywords: dict[str, Any],
) -> tuple[bytes, Any]:
    """(packed call, what must outlive its use)"""
    if op not in ("hstu", "softmax"):
        raise ValueError(f'op = "{op}" is unknown; pass "hstu" or "softmax"')
    if dtype not in _describe.DTYPE_CODES:
        raise TypeError(f"dtype is {dtype}; pass float16 or bfloat16, or on the CPU float32")
    described = _Described(_describe.DTYPE_NAMES[dtype], _device(device))
    hstu = op == "hstu"
    rest = dict(keywords)
    extras = (
        hstu_extras(
            _number_or_view(rest.pop("divisor", None), described),
            rest.pop("bias_scaled_by_alpha", True),
            rest.pop("score", None),
        )
        if hstu
        else softmax_extras(rest.pop("softcap", None))
    )
    lse = not hstu and bool(rest.pop("return_lse", False))
    common = {
        name: rest.pop(name, default)
        for name, default in (
            ("mask", Mask.causal() if hstu else Mask.full()),
            ("bias", None),
            ("alpha", None),
            ("max_seqlen_q", None),
            ("max_seqlen_k", None),
            ("seqused_q", None),
            ("seqused_k", None),
            ("deterministic", False),
            ("check_inputs", False),
        )
    }
    if rest:
        raise TypeError(f"{op}_attention has no keyword {', '.join(sorted(rest))}")
    values = list(flatten(q, k, v, cu_seqlens_q, cu_seqlens_k, **common))
    for place, name in enumerate(TENSOR_NAMES):
        if values[place] is not None:
            values[place] = _spec(name, values[place], described)
    names = TENSOR_NAMES
    for cumulative, length in (("cu_seqlens_q", 15), ("cu_seqlens_k", 16)):
        given = values[names.index(cumulative)] or values[names.index("cu_seqlens_q")]
        if given is not None:
            values[length] = _longest(given, values[length])
    flat: Flat = (*values, *extras)
    code = _layout.HSTU if hstu else _layout.SOFTMAX
    shape = _describe.describe(code, flat, _Planner(numpy=None))

    def result(size: tuple[int, ...], kind: str) -> View:
        return View(_NOWHERE, size, _dlpack.contiguous_strides(size), kind, flat[0].device, None)

    out = result(shape.out, flat[0].dtype)
    if not backward:
        return _call.pack_forward(code, shape, out, result(shape.lse, "float32") if lse else None), (shape, flat)
    gradients = tuple(None if x is None else result(x.shape, x.dtype) for x in flat[:6])
    softmax_out, softmax_lse = (None, None) if hstu else (out, result(shape.lse, "float32"))
    return _call.pack_backward(code, shape, out, softmax_out, softmax_lse, gradients), (shape, flat)


def _number_or_view(divisor: Any, described: _Described) -> Any:
    if divisor is None or isinstance(divisor, (int, float)):
        return divisor
    return _spec("divisor", divisor, described)


def explain(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    op: str = "hstu",
    backward: bool = False,
    dtype: str = "bfloat16",
    device: Any = "cpu",
    **keywords: Any,
) -> dict[str, Any]:
    """What a call would run and why, without running it: back end, kernel, tile, schedule.

    Takes the arguments of `hstu_attention` (op="hstu") or `softmax_attention` (op="softmax"), and instead of tensors
    their shapes: ``wl.explain((8192, 4, 128), (8192, 4, 128), (8192, 4, 128), [0, 4096, 8192], device="cuda")``.

    Arguments:
        q, k, v: tensors, or shapes as tuples of ints. A bias's values and tables, timestamps, intervals and a divisor
            tensor may be shapes too.
        cu_seqlens_q, cu_seqlens_k, and the keywords seqused_*, num_contexts, num_targets, time_bucket: arrays or lists
            of ints.
        op: "hstu" or "softmax".
        backward: the backward pass's plan.
        dtype, device: of everything that is given as a shape or a list; device is "cpu", "cuda" or "cuda:N".
        keywords: the attention call's own.

    Returns:
        A dict; docs/cli.md, "explain", lists its keys.

    Raises:
        As the attention call.
    """
    call, keep = _pack(q, k, v, cu_seqlens_q, cu_seqlens_k, op, backward, dtype, device, keywords)
    plan: dict[str, Any] = _library.json_text("warploom_explain", call)
    del keep
    return plan


def warmup(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    op: str = "hstu",
    dtype: str = "bfloat16",
    device: Any = "cpu",
    **keywords: Any,
) -> None:
    """Compiles and loads what a call needs, forward and backward, without running it, so that the first call does not
    wait.

    Takes what `explain` takes. On the CPU there is nothing to compile; the call is checked all the same.

    Raises:
        As the attention call; RuntimeError with the compiler's log when a kernel does not compile.
    """
    call, keep = _pack(q, k, v, cu_seqlens_q, cu_seqlens_k, op, False, dtype, device, keywords)
    _library.check(_library.library.warploom_warmup(call))
    del keep
