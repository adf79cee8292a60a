"""HSTU forward through the C ABI on plain allocations: what compute-sanitizer watches. No torch.

Every array has its exact size and is filled by copies from the host, so a read or write past one, or of what nobody
wrote, shows.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from gpu_cases import SANITIZER_PROBLEMS, Problem
from gpu_device_tests import ROUND, as_float
from gpu_driver import Array, Gpu
from warploom import _layout, _library


def pack(problem: Problem, addresses: dict[str, int], device_index: int = 0) -> bytes:
    """The packed description of a jagged call. addresses: of q, k, v, out, cu_q, cu_k and what else the problem has."""
    p = problem
    heads, total_q = p.heads, sum(p.slots_q) + p.extra_rows
    total_k = sum(p.slots_q if p.slots_k is None else p.slots_k) + p.extra_rows
    longest = max(p.slots_q, default=0) if p.max_seqlen == "given" else p.max_seqlen
    longest_k = max(p.slots_k or p.slots_q, default=0) if p.max_seqlen == "given" else p.max_seqlen
    divisor = p.divisor if isinstance(p.divisor, float) else None
    flags = _layout.HAS_DIVISOR if divisor is not None else 0
    flags |= _layout.WINDOW_FROM_HISTORY_END if p.from_history_end else 0

    def tensor(name: str, dim: int) -> tuple[int, int, int, int]:
        return addresses[name], 0, heads * dim, dim

    head = _layout.TENSORS_FORWARD.pack(
        *(_layout.ABI_VERSION, _layout.STRUCT_BYTES, _layout.HSTU, _layout.FORWARD),
        *(_layout.BFLOAT16 if p.bfloat16 else _layout.FLOAT16, _layout.CUDA, device_index, flags, 0),
        *(len(p.slots_q), heads, heads, p.dim, p.value_dim, total_q, total_k, longest, longest_k),
        *tensor("q", p.dim),
        *tensor("k", p.dim),
        *tensor("v", p.value_dim),
        *tensor("out", p.value_dim),
        0,
        0,
        0,
    )
    counts = p.intervals is None
    rest = _layout.LENGTHS_MASK_SCALARS.pack(
        *(addresses["cu_q"], addresses["cu_k"], 0, 0, addresses.get("used_q", 0), addresses.get("used_k", 0), -1, -1),
        *(_layout.UNBOUNDED if side is None else side for side in (p.left, p.right)),
        *(addresses.get("contexts", 0), addresses.get("targets", 0), -1, -1, p.group),
        *((0, 0, 0) if counts else (addresses["intervals"], p.interval_heads, p.intervals)),
        *(0.0, 0.0, divisor or 0.0, 0),
    )
    return head + rest + _layout.EMPTY_BIAS + _layout.EMPTY_TAIL


def run_on_missing_device(index: int) -> tuple[int, str]:
    """(status, message) of a call that names a device that is not there."""
    problem = Problem("missing", slots_q=(1,), slots_k=(1,))
    call = pack(problem, dict.fromkeys(("q", "k", "v", "out", "cu_q", "cu_k"), 4096), device_index=index)
    library = _library.library
    code = library.warploom_run(call)
    return code, library.warploom_last_error().decode()


def _expected(p: Problem, host: dict[str, Array]) -> Array:
    """float64, row by row: small and obvious."""
    kind = p.dtype
    q, k, v = (as_float(host[name], kind).astype(np.float64) for name in "qkv")
    out = np.zeros((q.shape[0], p.heads, p.value_dim))
    divisor = p.divisor if isinstance(p.divisor, float) else max(p.slots_q)
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(p.slots_q, p.slots_k or p.slots_q, strict=True)):
        lq, lk = (slot if used is None else used[b] for slot, used in ((slot_q, p.used_q), (slot_k, p.used_k)))  # type: ignore[index]
        nc, nt = (0 if count is None else count[b] for count in (p.contexts, p.targets))  # type: ignore[index]
        h, j = lk - nt, np.arange(lk)
        for i in range(lq):
            r = i + lk - lq
            for n in range(p.heads):
                if p.intervals is not None:
                    pairs = host["intervals"][n % p.interval_heads, first_q + i]
                    see = ((pairs[:, :1] <= j) & (j < pairs[:, 1:])).any(axis=0)
                elif r < nc:
                    see = j < h
                elif r >= h:
                    see = (j < h) | ((h + (r - h) // p.group * p.group <= j) & (j <= r))
                else:
                    see = j <= r
                z = k[first_k : first_k + lk, n] @ q[first_q + i, n] / p.dim**0.5
                out[first_q + i, n] = np.where(see, z / (1 + np.exp(-z)), 0) @ v[first_k : first_k + lk, n] / divisor
        first_q, first_k = first_q + slot_q, first_k + slot_k
    return out


def run_case(name: str) -> None:
    """Runs one of gpu_cases.SANITIZER_PROBLEMS and checks its result roughly. Raises when it is wrong."""
    p = SANITIZER_PROBLEMS[name]
    random = np.random.default_rng(5)
    gpu = Gpu()
    slots_k = p.slots_k or p.slots_q
    total_q, total_k = sum(p.slots_q) + p.extra_rows, sum(slots_k) + p.extra_rows
    shapes = {"q": (total_q, p.heads, p.dim), "k": (total_k, p.heads, p.dim), "v": (total_k, p.heads, p.value_dim)}
    host: dict[str, Array] = {
        n: ROUND[p.dtype](random.standard_normal(shape).astype(np.float32)) for n, shape in shapes.items()
    }
    host["cu_q"] = np.cumsum([0, *p.slots_q], dtype=np.int32)
    host["cu_k"] = np.cumsum([0, *slots_k], dtype=np.int32)
    for field in ("used_q", "used_k", "contexts", "targets"):
        values = getattr(p, field)
        if values is not None:
            host[field] = np.array(values, np.int32)
    if p.intervals is not None:
        begin = random.integers(-5, 75, (p.interval_heads, total_q, p.intervals))
        host["intervals"] = np.stack((begin, begin + random.integers(-5, 40, begin.shape)), axis=3).astype(np.int32)
    arrays: dict[str, Any] = {field: gpu.array(values) for field, values in host.items()}
    arrays["out"] = gpu.empty(total_q * p.heads * p.value_dim * 2)
    library = _library.library
    _library.add_cuda_library_directories()
    code = library.warploom_run(pack(p, {field: array.address for field, array in arrays.items()}))
    if code != 0:
        raise RuntimeError(ctypes.string_at(library.warploom_last_error()).decode())
    out = as_float(arrays["out"].read(np.uint16, (total_q, p.heads, p.value_dim)), p.dtype)
    expected = _expected(p, host)
    error = float(np.linalg.norm(out - expected) / np.linalg.norm(expected))
    if not error < 1e-2:
        raise RuntimeError(f"the result is wrong: relative error {error:.2e}")
