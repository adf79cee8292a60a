"""The CUDA driver and NVRTC through ctypes: just enough to compile a file, load it and run its kernels on NumPy arrays.

No torch and no caching allocator: every array is an allocation of its own, so compute-sanitizer sees each one's exact
bounds.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import EXAMPLES, KERNELS

Array = np.ndarray[Any, Any]


class CudaError(RuntimeError):
    """A call of the driver or of NVRTC failed."""


class DeviceArray:
    """Memory on the device, a multiple of 16 bytes of it: of a cp.async that reads fewer (PTX ISA, its src-size),
    memcheck counts all 16. Filled from `values`, or left uninitialised."""

    def __init__(self, gpu: Gpu, nbytes: int, values: Array | None = None) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        allocated = max(16, -(-nbytes // 16) * 16)
        pointer = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(allocated))
        self.address = pointer.value
        if values is not None:
            source = np.zeros(allocated, np.uint8)
            source[:nbytes] = np.ascontiguousarray(values).ravel().view(np.uint8)
            gpu.call("cuMemcpyHtoD_v2", pointer, ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(allocated))

    def read(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        """The contents, after everything that was launched."""
        values = np.empty(shape, dtype)
        assert values.nbytes <= self.nbytes
        self.gpu.synchronize()
        if values.nbytes > 0:
            address = ctypes.c_uint64(self.address)
            self.gpu.call(
                "cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), address, ctypes.c_size_t(values.nbytes)
            )
        return values

    def __del__(self) -> None:
        self.gpu.driver.cuMemFree_v2(ctypes.c_uint64(self.address))


class TensorMap:
    """A tensor map over a device array, dimension 0 innermost; strides in bytes, of the dimensions from 1 on."""

    ELEMENTS = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "float16": 6, "float32": 7}  # noqa: RUF012
    SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # noqa: RUF012

    def __init__(
        self,
        array: DeviceArray,
        dtype: str,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        swizzle: int = 0,
    ) -> None:
        self._memory = (ctypes.c_ubyte * 192)()
        # The driver and the launch want 64-byte alignment, which ctypes does not promise.
        self.address = -(-ctypes.addressof(self._memory) // 64) * 64
        self.array = array
        array.gpu.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(self.address),
            self.ELEMENTS[dtype],
            len(dims),
            ctypes.c_uint64(array.address),
            (ctypes.c_uint64 * 5)(*dims),
            (ctypes.c_uint64 * 5)(*strides),
            (ctypes.c_uint32 * 5)(*box),
            (ctypes.c_uint32 * 5)(*[1] * 5),
            0,
            self.SWIZZLES[swizzle],
            0,
            0,
        )


class Gpu:
    """The first device, its primary context current in this thread."""

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.modules: dict[tuple[Path, tuple[str, ...], str], ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: CUDA error {code} {(text.value or b'').decode()}")

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def array(self, values: Array) -> DeviceArray:
        return DeviceArray(self, values.nbytes, values)

    def empty(self, nbytes: int) -> DeviceArray:
        return DeviceArray(self, nbytes)

    def filled(self, nbytes: int, byte: int = 0xFF) -> DeviceArray:
        """0xff: NaN in every floating type."""
        return DeviceArray(self, nbytes, np.full(nbytes, byte, np.uint8))

    def architecture(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(major), 75, 0)
        self.call("cuDeviceGetAttribute", ctypes.byref(minor), 76, 0)
        return f"sm_{major.value}{minor.value}" + ("a" if major.value == 9 else "")

    def load(self, source: Path, defines: tuple[str, ...], cubin: bytes, prefix: str = "") -> None:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.modules[source, defines, prefix] = module

    def launch(
        self,
        source: Path,
        kernel: str,
        *arguments: Any,
        grid: int = 1,
        block: int = 32,
        shared: int = 0,
        defines: tuple[str, ...] = (),
        prefix: str = "",
    ) -> None:
        """Compiles the file, with `prefix` before it, once. Arguments: DeviceArray (its address), int (32 bits),
        np.int64, np.float32, TensorMap, an array of NumPy (by value)."""
        if (source, defines, prefix) not in self.modules:
            self.load(source, defines, compile_file(source, self.architecture(), defines, prefix), prefix)
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.modules[source, defines, prefix], kernel.encode())
        if shared > 32 * 1024:  # beyond 48 KiB, what the kernel declares itself counted
            self.call("cuFuncSetAttribute", function, 8, shared)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        held = [_argument(value) for value in arguments]
        pointers = (ctypes.c_void_p * max(1, len(held)))(*map(_address, held))
        self.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, pointers, None)
        self.synchronize()


def _argument(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return ctypes.c_uint64(value.address)
    if isinstance(value, np.int64):
        return ctypes.c_int64(int(value))
    if isinstance(value, np.float32):
        return ctypes.c_float(float(value))
    if isinstance(value, TensorMap | np.ndarray):
        return value
    return ctypes.c_int32(value)


def _address(held: Any) -> int:
    if isinstance(held, TensorMap):
        return held.address
    return int(held.ctypes.data) if isinstance(held, np.ndarray) else ctypes.addressof(held)


def find_nvrtc() -> ctypes.CDLL:
    """NVRTC of the nvidia-cuda-nvrtc wheel, of torch, or of the system."""
    candidates: list[str] = []
    for folder in map(Path, sys.path):
        for pattern in ("nvidia/*/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"):
            if folder.is_dir():
                candidates += [str(path) for path in sorted(folder.glob(pattern)) if ".alt." not in path.name]
    candidates += ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"]
    for candidate in candidates:
        try:
            library = ctypes.CDLL(candidate)
            library.nvrtcCreateProgram  # noqa: B018 (libnvrtc-builtins has no such function)
            return library
        except (OSError, AttributeError):
            continue
    raise CudaError("NVRTC was not found: pip install nvidia-cuda-nvrtc")


def compile_file(source: Path, architecture: str, defines: tuple[str, ...] = (), prefix: str = "") -> bytes:
    """The cubin of `prefix` and a file that include headers of kernels/ and examples/. defines: "NAME=TEXT"."""
    nvrtc = find_nvrtc()
    program = ctypes.c_void_p()
    name = source.name.encode()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), prefix.encode() + source.read_bytes(), name, 0, None, None) != 0:
        raise CudaError("nvrtcCreateProgram failed")
    options = [f"--gpu-architecture={architecture}", "--std=c++20"]
    options += [f"--include-path={folder}" for folder in (KERNELS, EXAMPLES)]
    options += [f"--define-macro={define}" for define in defines]
    texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = nvrtc.nvrtcCompileProgram(program, len(options), texts)
    size = ctypes.c_size_t()
    if code != 0:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaError(f"{source.name} does not compile:\n{log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin.raw
