"""Calls on arrays of any library but torch, in host memory: NumPy, the array interface, DLPack; NumPy is not required.

What comes back is of q's library: NumPy for NumPy arrays and for objects with only an array interface (without NumPy,
the package's own ``Array``), the library of q's ``__array_namespace__`` where it has a ``from_dlpack`` (JAX, CuPy), the
package's own ``Array`` for an object that has only ``__dlpack__`` (with torch installed such objects never get here).
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

from . import _call, _dlpack, _layout
from ._arguments import BIAS, DIVISOR_ROWS, NUM_HSTU, POSITION, TENSOR_NAMES, TIME, Flat, kind_name
from ._call import Gradients


@dataclass(frozen=True)
class Device:
    type: str
    index: int

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"{self.type}:{self.index}"


ARRAY_KINDS = "pass a torch tensor, a NumPy array, or an object with __dlpack__ or __array_interface__"

_HOST = Device("cpu", 0)


class View:
    """An array in torch's small protocol: what ``_call`` reads."""

    __slots__ = ("_address", "_strides", "device", "dtype", "ndim", "owner", "shape")

    def __init__(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: Device, owner: Any
    ) -> None:
        self._address = address
        self._strides = strides
        self.shape = shape
        self.ndim = len(shape)
        self.dtype = dtype
        self.device = device
        self.owner = owner

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return self._address

    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self._strides), strict=True):
            if size > 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"


def _numpy() -> Any:
    """NumPy when it is installed, else None. Only asked for arrays that NumPy made or can describe."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_on_host(value: Any) -> bool:
    """Whether an object with `__dlpack__` is in host memory."""
    return bool(value.__dlpack_device__()[0] == _dlpack.CPU)


def _view_numpy(name: str, array: Any) -> View:
    size = array.dtype.itemsize
    if not array.dtype.isnative:
        raise TypeError(
            f"{name} has the byte order of another machine ({array.dtype}); pass {name}.astype of the native one"
        )
    if any(step % size for step in array.strides):
        raise ValueError(
            f"{name} has strides of {array.strides} bytes, no multiples of its {size}-byte elements; pass a copy"
        )
    strides = tuple(step // size for step in array.strides)
    return View(array.__array_interface__["data"][0], array.shape, strides, array.dtype.name, _HOST, array)


def _view_interface(name: str, value: Any) -> View:
    numpy = _numpy()
    if numpy is not None:
        return _view_numpy(name, numpy.asarray(value))
    interface = value.__array_interface__
    names = {"<f2": "float16", "<f4": "float32", "<f8": "float64", "<i4": "int32", "<i8": "int64"}
    dtype = names.get(interface["typestr"])
    data = interface.get("data")
    if dtype is None or data is None:
        raise TypeError(f"{name} has an array interface of type {interface['typestr']} that needs NumPy; install numpy")
    shape = tuple(interface["shape"])
    size = _dlpack.item_bytes(dtype)
    steps = interface.get("strides")
    strides = _dlpack.contiguous_strides(shape) if steps is None else tuple(step // size for step in steps)
    return View(data[0], shape, strides, dtype, _HOST, value)


def view(name: str, value: Any) -> View:
    """An array of any library as a View. TypeError for anything else."""
    if is_numpy(value):
        return _view_numpy(name, value)
    if hasattr(value, "__dlpack__"):
        address, shape, strides, dtype, device, owner = _dlpack.read(name, value)
        if device[0] != "cpu":
            raise RuntimeError(
                f"{name} ({kind_name(value)}) is on {Device(*device)}; arrays on a GPU are served through torch, "
                "install torch"
            )
        return View(address, shape, strides, dtype, _HOST, (owner, value))
    if hasattr(value, "__array_interface__"):
        return _view_interface(name, value)
    raise TypeError(f"{name} is a {kind_name(value)}; {ARRAY_KINDS}")


class HostArrays:
    """Allocates results as NumPy arrays, or as ``Array`` when there is no NumPy to use."""

    def __init__(self, numpy: Any) -> None:
        self._numpy = numpy

    def _new(self, shape: tuple[int, ...], dtype: str, numpy_dtype: Any) -> View:
        if self._numpy is not None:
            return _view_numpy("out", self._numpy.empty(shape, numpy_dtype))
        array = _dlpack.Array(shape, dtype)
        return View(array.address, shape, _dlpack.contiguous_strides(shape), dtype, _HOST, array)

    def empty(self, shape: tuple[int, ...], like: View) -> View:
        numpy_dtype = like.owner.dtype if is_numpy(like.owner) else like.dtype
        return self._new(shape, like.dtype, numpy_dtype)

    def empty_float32(self, shape: tuple[int, ...], like: View) -> View:
        return self._new(shape, "float32", "float32")

    def int32(self, tensor: View) -> View:
        if is_numpy(tensor.owner):
            return _view_numpy("", tensor.owner.clip(-(2**31), 2**31 - 1).astype("int32"))
        return self._copy(tensor, "int32", lambda value: max(-(2**31), min(2**31 - 1, value)))

    def contiguous(self, tensor: View) -> View:
        if is_numpy(tensor.owner):
            return _view_numpy("", tensor.owner.copy(order="C"))
        return self._copy(tensor, tensor.dtype, lambda value: value)

    @staticmethod
    def _copy(tensor: View, dtype: str, convert: Any) -> View:
        """A contiguous copy, element by element: for small index arrays and rare layouts."""
        source, target = ELEMENTS[tensor.dtype], ELEMENTS[dtype]
        array = _dlpack.Array(tensor.shape, dtype)
        offsets = [0]
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            offsets = [offset + index * stride for offset in offsets for index in range(size)]
        width = ctypes.sizeof(source)
        memory = (target * len(offsets)).from_address(array.address)
        for position, offset in enumerate(offsets):
            memory[position] = convert(source.from_address(tensor.data_ptr() + offset * width).value)
        return View(array.address, tensor.shape, _dlpack.contiguous_strides(tensor.shape), dtype, _HOST, array)

    def stream(self, device_index: int) -> int:
        raise AssertionError("host arrays have no stream")


def _backend_for(q: Any) -> HostArrays:
    """NumPy's arrays for q's that are or become NumPy's, ``Array`` for those with only `__dlpack__`."""
    return HostArrays(_numpy() if is_numpy(q) or not hasattr(q, "__dlpack__") else None)


def _result(tensor: View | None) -> Any:
    """What the caller gets."""
    return None if tensor is None else tensor.owner


# Elements as the copy above moves them: 16-bit floats are moved as they are.
ELEMENTS: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float16": ctypes.c_uint16,
    "bfloat16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
}


def _views(flat: Flat) -> Flat:
    values = list(flat)
    for place, name in enumerate(TENSOR_NAMES):
        if values[place] is not None:
            values[place] = view(name, values[place])
    if len(values) == NUM_HSTU and values[DIVISOR_ROWS] is not None:
        values[DIVISOR_ROWS] = view("divisor", values[DIVISOR_ROWS])
    return tuple(values)


def hstu(flat: Flat) -> Any:
    backend = _backend_for(flat[0])
    return _result(_call.forward(_layout.HSTU, _views(flat), backend, False)[0])


def softmax(flat: Flat, return_lse: bool) -> Any:
    backend = _backend_for(flat[0])
    out, lse = _call.forward(_layout.SOFTMAX, _views(flat), backend, return_lse)
    return (_result(out), _result(lse)) if return_lse else _result(out)


def _backward(op: int, dout: Any, out: Any, lse: Any, flat: Flat) -> Gradients:
    backend = _backend_for(flat[0])
    if op == _layout.SOFTMAX:
        out, lse = view("out", out), view("lse", lse)
    flat = _views(flat)
    wanted = (flat[BIAS] is not None, flat[POSITION] is not None, flat[TIME] is not None)
    gradients = _call.backward(op, flat, backend, view("dout", dout), out, lse, wanted)
    return _call.gradients(flat, tuple(_result(gradient) for gradient in gradients))


def hstu_backward(dout: Any, flat: Flat) -> Gradients:
    return _backward(_layout.HSTU, dout, None, None, flat)


def softmax_backward(dout: Any, out: Any, lse: Any, flat: Flat) -> Gradients:
    return _backward(_layout.SOFTMAX, dout, out, lse, flat)
