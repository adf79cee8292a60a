"""Finds libwarploom, loads it and turns its status codes into exceptions.

Where it is looked for, and nowhere else:

1. ``lib/`` inside this package: where a wheel and ``make build`` put it.
2. The folder named by the environment variable ``WARPLOOM_LIBRARY``: for development, when the library is in a build
   tree (``build/<preset>/lib``) and the package is imported from ``python/``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from . import _layout

__all__ = ["add_cuda_library_directories", "check", "json_text", "library", "raise_last_error", "run", "version"]

_NAME = "libwarploom.so"
_PACKAGE = Path(__file__).resolve().parent


def _find() -> Path:
    folders = [_PACKAGE / "lib"]
    development = os.environ.get("WARPLOOM_LIBRARY")
    if development:
        folders.append(Path(development))
    for folder in folders:
        if (folder / _NAME).is_file():
            return folder / _NAME
    tried = " and ".join(str(folder) for folder in folders)
    raise ImportError(
        f"{_NAME} is not in {tried}; install the package (pip install .) or build it (make build), or, for "
        "development, set WARPLOOM_LIBRARY to the build tree's lib folder"
    )


def _load(path: Path) -> ctypes.CDLL:
    """Loads the library and refuses one of another release, before any of its structures is used."""
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from error
    loaded.warploom_version.restype = ctypes.c_char_p
    loaded.warploom_abi_version.restype = ctypes.c_uint32
    loaded.warploom_last_error.restype = ctypes.c_char_p
    for function in ("warploom_validate", "warploom_run", "warploom_warmup"):
        getattr(loaded, function).argtypes = [ctypes.c_char_p]
    loaded.warploom_explain.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    for function in ("warploom_devices", "warploom_info"):
        getattr(loaded, function).argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    loaded.warploom_free.argtypes = [ctypes.c_void_p]
    loaded.warploom_free.restype = None
    loaded.warploom_set_num_threads.argtypes = [ctypes.c_int32]
    loaded.warploom_get_num_threads.restype = ctypes.c_int32
    loaded.warploom_add_library_directory.argtypes = [ctypes.c_char_p]
    loaded.warploom_attention_init.argtypes = [ctypes.c_char_p]
    loaded.warploom_attention_init.restype = None
    _refuse_other_release(path, loaded)
    for function in ("warploom_describe_score", "warploom_describe_mask"):
        getattr(loaded, function).argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
    floats = ctypes.POINTER(ctypes.c_float)
    loaded.warploom_evaluate_score.argtypes = [ctypes.c_void_p, floats, ctypes.c_int64, floats, floats]
    loaded.warploom_gemm_run.argtypes = [ctypes.c_char_p]
    loaded.warploom_gemm_explain.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    for function in ("warploom_trace_gemm", "warploom_trace_attention"):
        getattr(loaded, function).argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    return loaded


def _refuse_other_release(path: Path, loaded: ctypes.CDLL) -> None:
    found = loaded.warploom_abi_version()
    if found != _layout.ABI_VERSION:
        raise ImportError(
            f"the Python package warploom speaks ABI version {_layout.ABI_VERSION} and {path} version {found}: "
            "package and library are of different releases; reinstall warploom"
        )
    # The library writes its own structure's size; the buffer is larger than any release's structure.
    buffer = ctypes.create_string_buffer(4096)
    loaded.warploom_attention_init(buffer)
    _, struct_bytes = _layout.VERSIONS.unpack_from(buffer.raw)
    if struct_bytes != _layout.STRUCT_BYTES:
        raise ImportError(
            f"warploom_attention has {struct_bytes} bytes in {path} and {_layout.STRUCT_BYTES} in the Python package "
            "warploom: package and library are of different releases; reinstall warploom"
        )


library = _load(_find())
version: str = library.warploom_version().decode()
run = library.warploom_run

_ERRORS: dict[int, type[Exception]] = {1: ValueError, 2: TypeError, 3: RuntimeError}


def raise_last_error(status: int) -> NoReturn:
    """Raises the calling thread's last error as ValueError, TypeError or RuntimeError."""
    message = library.warploom_last_error().decode(errors="replace")
    raise _ERRORS.get(status, RuntimeError)(message or f"the library returned status {status} without a message")


def check(status: int) -> None:
    if status != 0:
        raise_last_error(status)


def json_text(function: str, *arguments: Any) -> Any:
    """Calls a function whose last argument receives JSON text, and parses the text."""
    text = ctypes.c_void_p()
    check(getattr(library, function)(*arguments, ctypes.byref(text)))
    try:
        return json.loads(ctypes.string_at(text.value or 0))
    finally:
        library.warploom_free(text)


_cuda_directories_lock = threading.Lock()
_cuda_directories_added = False


def add_cuda_library_directories() -> None:
    """Tells the library, once, where this Python environment keeps NVRTC: the nvidia wheels' folders and torch's
    own."""
    global _cuda_directories_added
    with _cuda_directories_lock:
        if _cuda_directories_added:
            return
        _cuda_directories_added = True
        for entry in sys.path:
            site = Path(entry)
            for pattern in ("nvidia/*/lib", "torch/lib"):
                for folder in sorted(site.glob(pattern)) if entry else []:
                    if any(folder.glob("libnvrtc.so*")) or any(folder.glob("libnvrtc-*.so*")):
                        check(library.warploom_add_library_directory(os.fsencode(folder)))
