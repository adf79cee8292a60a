"""DLPack in both directions with ctypes alone: what serves `__dlpack__` objects when there is no torch.

The structures are those of dlpack.h: 1.x (capsules named "dltensor_versioned"), and 0.x ("dltensor") with a partner
that knows no other.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ._arguments import kind_name

CPU = 1
CUDA = 2

# (type code, bits) -> name
_DTYPES = {
    (2, 16): "float16",
    (2, 32): "float32",
    (2, 64): "float64",
    (4, 16): "bfloat16",
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    (6, 8): "bool",
}
_CODES = {name: code for code, name in _DTYPES.items()}
_TYPESTRS = {"float16": "<f2", "float32": "<f4", "int32": "<i4", "int64": "<i8"}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensor(ctypes.Structure):
    pass


class _VersionedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_ManagedTensor._fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]
_VersionedTensor._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("manager", ctypes.c_void_p),
    ("deleter", _Deleter),
    ("flags", ctypes.c_uint64),
    ("tensor", _Tensor),
]
_VERSION = (1, 0)

_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
# The like on the address of a capsule that is being destroyed, which must not become a Python object again.
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_dying_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_NAME = b"dltensor"
_VERSIONED_NAME = b"dltensor_versioned"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(1, shape[axis + 1])
    return tuple(strides)


def item_bytes(dtype: str) -> int:
    return _CODES[dtype][1] // 8


# --- producing --------------------------------------------------------------------------------------------------------

# What is lent out through a capsule: address of its structure -> everything that must live until the deleter is called.
_lent: dict[int, Any] = {}


# Consumers may live longer than this module's names, which an exiting interpreter clears: what the two callbacks need
# is bound to them, and they are never freed.


def _release(managed: int, lent: Any = _lent) -> None:
    lent.pop(managed, None)


def _destroy_unused(
    capsule: int,
    lent: Any = _lent,
    name_of: Any = _dying_name,
    pointer: Any = _dying_pointer,
    names: tuple[bytes, bytes] = (_NAME, _VERSIONED_NAME),
) -> None:
    """A capsule nobody consumed (a consumer renames it) gives its tensor back itself."""
    name = name_of(capsule)
    if name in names:
        lent.pop(pointer(capsule, name), None)


_release_callback = _Deleter(_release)
_destroy_unused_callback = _Destructor(_destroy_unused)
for _callback in (_release_callback, _destroy_unused_callback):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))


class Array:
    """A contiguous array in host memory: the result of a call on `__dlpack__` objects when torch is not installed.

    Attributes: shape, dtype (a name such as "bfloat16"). Read it with any library's ``from_dlpack``.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape = shape
        self.dtype = dtype
        count = 1
        for size in shape:
            count *= size
        self._buffer = ctypes.create_string_buffer(count * item_bytes(dtype) + 64)
        self.address = -(-ctypes.addressof(self._buffer) // 64) * 64
        if dtype in _TYPESTRS:
            self.__array_interface__ = {
                "version": 3,
                "shape": shape,
                "typestr": _TYPESTRS[dtype],
                "data": (self.address, False),
            }

    def __repr__(self) -> str:
        return f"warploom.Array(shape={self.shape}, dtype={self.dtype!r})"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of this array's memory. BufferError when another device or a copy is asked for."""
        if dl_device is not None and tuple(dl_device) != (CPU, 0):
            raise BufferError("this array is in host memory and does not move to another device")
        if copy:
            raise BufferError("this array lends its memory and makes no copy")
        rank = len(self.shape)
        sizes = (ctypes.c_int64 * rank)(*self.shape)
        strides = (ctypes.c_int64 * rank)(*contiguous_strides(self.shape))
        code, bits = _CODES[self.dtype]
        tensor = _Tensor(self.address, _Device(CPU, 0), rank, _DataType(code, bits, 1), sizes, strides, 0)
        versioned = max_version is not None and tuple(max_version) >= _VERSION
        managed: Any = _VersionedTensor(*_VERSION) if versioned else _ManagedTensor()
        managed.tensor = tensor
        managed.deleter = _release_callback
        address = ctypes.addressof(managed)
        _lent[address] = (self, managed, sizes, strides)
        return _capsule_new(address, _VERSIONED_NAME if versioned else _NAME, _destroy_unused_callback)


# --- consuming --------------------------------------------------------------------------------------------------------


def read(name: str, producer: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], str, tuple[str, int], Any]:
    """(address, shape, strides in elements, dtype, device, owner) of an object with `__dlpack__`.

    The owner (the capsule, which is left unconsumed) keeps the memory alive and gives it back when it is released.
    """
    try:
        try:
            capsule = producer.__dlpack__(max_version=_VERSION)
        except TypeError:  # a producer of 0.x takes no such argument
            capsule = producer.__dlpack__()
    except Exception as error:  # a producer may raise anything
        raise TypeError(f"{name} ({kind_name(producer)}) cannot be read through DLPack: {error}") from error
    versioned = bool(_capsule_is_valid(capsule, _VERSIONED_NAME))
    structure = _VersionedTensor if versioned else _ManagedTensor
    managed: Any = structure.from_address(_capsule_pointer(capsule, _VERSIONED_NAME if versioned else _NAME))
    if versioned and managed.major > _VERSION[0]:
        raise TypeError(f"{name} speaks DLPack {managed.major}.{managed.minor}; this release reads 0.x and 1.x")
    tensor = managed.tensor
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = (
        tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else contiguous_strides(shape)
    )
    kind = (tensor.dtype.code, tensor.dtype.bits)
    dtype = _DTYPES.get(kind, f"DLPack type {kind}") if tensor.dtype.lanes == 1 else "a vector type"
    devices = {CPU: "cpu", CUDA: "cuda"}
    device = (devices.get(tensor.device.kind, f"DLPack device {tensor.device.kind}"), tensor.device.index)
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, device, capsule
