"""Attention through the C ABI on plain allocations: what compute-sanitizer watches. No torch.

Every array has its exact size and is filled by copies from the host, so a read or write past one, or of what nobody
wrote, shows.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import gpu_functions
import numpy as np
from gpu_cases import SANITIZER_PROBLEMS, Problem
from gpu_device_tests import ROUND, as_float
from gpu_driver import Array, Gpu
from warploom import _functions, _layout, _library


def pack(
    problem: Problem,
    addresses: dict[str, int],
    device_index: int = 0,
    backward: bool = False,
    deterministic: bool = False,
) -> bytes:
    """The packed description of a jagged call. addresses: of q, k, v, out, cu_q, cu_k and what else the call has: lse,
    backward dout, dq, dk, dv, and what the problem names."""
    p = problem
    heads, total_q = p.heads, sum(p.slots_q) + p.extra_rows
    total_k = sum(p.slots_q if p.slots_k is None else p.slots_k) + p.extra_rows
    longest = max(p.slots_q, default=0) if p.max_seqlen == "given" else p.max_seqlen
    longest_k = max(p.slots_k or p.slots_q, default=0) if p.max_seqlen == "given" else p.max_seqlen
    divisor = p.divisor if isinstance(p.divisor, float) else None
    operator = _layout.SOFTMAX if p.softmax else _layout.HSTU
    flags = _layout.HAS_DIVISOR if divisor is not None else 0
    flags |= _layout.WINDOW_FROM_HISTORY_END if p.from_history_end else 0
    flags |= _layout.DETERMINISTIC if deterministic else 0

    def tensor(name: str, dim: int) -> tuple[int, int, int, int]:
        return addresses[name], 0, heads * dim, dim

    fields = [
        *(_layout.ABI_VERSION, _layout.STRUCT_BYTES, operator, _layout.BACKWARD if backward else _layout.FORWARD),
        *(_layout.BFLOAT16 if p.bfloat16 else _layout.FLOAT16, _layout.CUDA, device_index, flags, 0),
        *(len(p.slots_q), heads, heads, p.dim, p.value_dim, total_q, total_k, longest, longest_k),
        *tensor("q", p.dim),
        *tensor("k", p.dim),
        *tensor("v", p.value_dim),
        *tensor("out", p.value_dim),
    ]
    if backward:
        fields += [*tensor("dout", p.value_dim), *tensor("dq", p.dim), *tensor("dk", p.dim), *tensor("dv", p.value_dim)]
    fields += [addresses.get("lse", 0), 0, total_q]
    head = (_layout.TENSORS_BACKWARD if backward else _layout.TENSORS_FORWARD).pack(*fields)
    counts = p.intervals is None
    rest = _layout.LENGTHS_MASK_SCALARS.pack(
        *(addresses["cu_q"], addresses["cu_k"], 0, 0, addresses.get("used_q", 0), addresses.get("used_k", 0), -1, -1),
        *(_layout.UNBOUNDED if side is None else side for side in (p.left, p.right)),
        *(addresses.get("contexts", 0), addresses.get("targets", 0), -1, -1, p.group),
        *((0, 0, 0) if counts else (addresses["intervals"], p.interval_heads, p.intervals)),
        *(0.0, p.softcap or 0.0, divisor or 0.0, 0),
    )
    return head + rest + _pack_bias(p, addresses) + _pack_functions(p)


_TEXTS: list[Any] = []  # what descriptions point to


def _pack_functions(p: Problem) -> bytes:
    fields: list[int] = []
    for kind, name in (("score", p.score), ("mask", p.mask_function)):
        if name is None:
            fields += _layout.NO_FUNCTION
            continue
        text, slope, parameters = (
            gpu_functions.SCORES[name]
            if kind == "score"
            else (gpu_functions.MASKS[name][0], None, gpu_functions.MASKS[name][1])
        )
        function, own = _functions.structure(kind, text, slope, ", ".join(parameters), list(parameters.values()))
        _TEXTS.append(function)
        fields += own
    return _layout.TAIL.pack(*fields, 0, 0)


POSITIONS, TIMES = 50, 20


def _packed_pitches(p: Problem) -> list[int]:
    chunk = 4 if p.bias_float32 else 8
    return [-(-slot // chunk) * chunk for slot in p.slots_k or p.slots_q]


def _pack_bias(p: Problem, addresses: dict[str, int]) -> bytes:
    """Dense (B, H, Lk_max, Lk_max) or packed, in rows of k; bucketed with both tables for each head."""
    if p.bias is None:
        return _layout.EMPTY_BIAS
    dtype = _layout.FLOAT32 if p.bias_float32 else _layout.BFLOAT16 if p.bfloat16 else _layout.FLOAT16
    slots_k = p.slots_k or p.slots_q
    if p.bias == "bucketed":
        tables = (
            *(addresses["position"], addresses.get("dposition", 0), p.heads, POSITIONS, POSITIONS),
            *(addresses["time"], addresses.get("dtime", 0), p.heads, TIMES, TIMES),
        )
        return _layout.BIAS.pack(
            *(_layout.BUCKETED_BIAS, _layout.FLOAT32, 0, 0), *(0,) * 12, *tables, addresses["timestamps"], 0
        )
    if p.bias == "dense":
        n = max(slots_k)
        shape, strides = (len(slots_k), p.heads, n, n), (p.heads * n * n, n * n, n)
        kind = _layout.DENSE_BIAS
    else:
        elements = sum(slot * pitch for slot, pitch in zip(slots_k, _packed_pitches(p), strict=True))
        shape, strides = (1, p.heads, 0, elements), (0, elements, 0)
        kind = _layout.PACKED_BIAS
    places = (addresses["bias"], addresses.get("dbias", 0))
    return _layout.BIAS.pack(kind, dtype, _layout.ROWS_KEY, 0, *places, *shape, *strides, *strides, *(0,) * 12)


def _bias_arrays(p: Problem, random: Any) -> dict[str, Array]:
    slots_k = p.slots_k or p.slots_q
    if p.bias == "bucketed":
        steps = random.integers(0, 1000, sum(slots_k) + p.extra_rows)
        return {
            "position": random.standard_normal((p.heads, POSITIONS)).astype(np.float32),
            "time": random.standard_normal((p.heads, TIMES)).astype(np.float32),
            "timestamps": np.cumsum(steps).astype(np.int64),
        }
    if p.bias is None:
        return {}
    n = max(slots_k)
    shape = (len(slots_k), p.heads, n, n)
    if p.bias == "packed":
        shape = (p.heads, sum(slot * pitch for slot, pitch in zip(slots_k, _packed_pitches(p), strict=True)))
    values = random.standard_normal(shape).astype(np.float32)
    return {"bias": values if p.bias_float32 else ROUND[p.dtype](values)}


def _bias_row(p: Problem, host: dict[str, Array], b: int, n: int, r: int, lk: int, first_k: int) -> Any:
    """R of row r and columns 0..lk-1."""
    if p.bias is None:
        return 0.0
    if p.bias == "bucketed":
        distance = np.abs(host["timestamps"][first_k + r] - host["timestamps"][first_k : first_k + lk])
        bucket = np.clip(np.floor(np.log(np.maximum(1, distance)) / 0.301), 0, TIMES - 1).astype(int)
        return host["position"][n, np.clip(r - np.arange(lk), 0, POSITIONS - 1)] + host["time"][n, bucket]
    return _stored_row(p, host["bias"] if p.bias_float32 else as_float(host["bias"], p.dtype), b, n, r, lk)


def _stored_row(p: Problem, values: Array, b: int, n: int, r: int, lk: int) -> Any:
    """Row r and columns 0..lk-1 of a dense or packed bias or its gradient."""
    if p.bias == "dense":
        return values[b, n, r, :lk]
    slots_k, pitches = p.slots_k or p.slots_q, _packed_pitches(p)
    first = sum(slot * pitch for slot, pitch in zip(slots_k[:b], pitches[:b], strict=True)) + r * pitches[b]
    return values[n, first : first + lk]


def run_on_missing_device(index: int) -> tuple[int, str]:
    """(status, message) of a call that names a device that is not there."""
    problem = Problem("missing", slots_q=(1,), slots_k=(1,))
    addresses = {name: 4096 * place for place, name in enumerate(("q", "k", "v", "out", "cu_q", "cu_k"), start=1)}
    call = pack(problem, addresses, device_index=index)
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
                if p.mask_function is not None:
                    see = gpu_functions.visible(p.mask_function, i, r, j, lk, nc, nt, b, n)
                elif p.intervals is not None:
                    pairs = host["intervals"][n % p.interval_heads, first_q + i]
                    see = ((pairs[:, :1] <= j) & (j < pairs[:, 1:])).any(axis=0)
                elif r < nc:
                    see = j < h
                elif r >= h:
                    see = (j < h) | ((h + (r - h) // p.group * p.group <= j) & (j <= r))
                else:
                    see = j <= r
                z = k[first_k : first_k + lk, n] @ q[first_q + i, n] / p.dim**0.5
                bias = _bias_row(p, host, b, n, r, lk, first_k)
                values = v[first_k : first_k + lk, n]
                if p.softmax:
                    z = z + bias
                    weights = np.where(see, np.exp(p.softcap * np.tanh(z / p.softcap) if p.softcap else z), 0)
                    out[first_q + i, n] = weights @ values / weights.sum()
                else:
                    z = z + bias / p.dim**0.5
                    weights = z / (1 + np.exp(-z)) if p.score is None else gpu_functions.score(p.score, z)
                    out[first_q + i, n] = np.where(see, weights, 0) @ values / divisor
        first_q, first_k = first_q + slot_q, first_k + slot_k
    return out


def _run(call: bytes) -> None:
    library = _library.library
    _library.add_cuda_library_directories()
    if library.warploom_run(call) != 0:
        raise RuntimeError(ctypes.string_at(library.warploom_last_error()).decode())


def _inputs(p: Problem) -> dict[str, Array]:
    """Random arrays of a problem."""
    random = np.random.default_rng(5)
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
    return host | _bias_arrays(p, random)


def _bias_gradients(p: Problem, arrays: dict[str, Any], host: dict[str, Array], dq: Array) -> list[Array]:
    """Gradients of the bias's tensors, float64. The sums over both tables are equal; a stored bias's times K is dq, but
    for softmax's alpha."""
    if p.bias == "bucketed":
        tables = [
            np.asarray(arrays[f"d{name}"].read(np.float32, host[name].shape), np.float64)
            for name in ("position", "time")
        ]
        size = float(np.linalg.norm(tables[0]) + np.linalg.norm(tables[1]))
        if not (size > 0 and abs(float(tables[0].sum() - tables[1].sum())) < 1e-3 * size):
            raise RuntimeError(f"wrong gradients of tables: they sum to {tables[0].sum()} and {tables[1].sum()}")
        return tables
    kind = np.float32 if p.bias_float32 else np.uint16
    values = arrays["dbias"].read(kind, host["bias"].shape)
    gradient = np.asarray(values if p.bias_float32 else as_float(values, p.dtype), np.float64)
    k = np.asarray(as_float(host["k"], p.dtype), np.float64)
    expected = np.zeros_like(dq)
    first_q = first_k = 0
    for b, (slot_q, slot_k) in enumerate(zip(p.slots_q, p.slots_k or p.slots_q, strict=True)):
        for i in range(slot_q):
            for n in range(p.heads):
                dr = _stored_row(p, gradient, b, n, i + slot_k - slot_q, slot_k)
                expected[first_q + i, n] = dr @ k[first_k : first_k + slot_k, n] * (p.dim**-0.5 if p.softmax else 1)
        first_q, first_k = first_q + slot_q, first_k + slot_k
    if not float(np.linalg.norm(expected - dq)) <= 2e-2 * float(np.linalg.norm(dq)):
        raise RuntimeError("the gradient of the bias times k is not dq")
    return [gradient]


def run_case(name: str) -> None:
    """Runs one of gpu_cases.SANITIZER_PROBLEMS, or "backward-" and one, and checks its result roughly.

    Raises when it is wrong.
    """
    if name.startswith("backward-"):
        for softmax in (False, True):
            p = SANITIZER_PROBLEMS[name.removeprefix("backward-")]
            # What the other operator does not take.
            own: dict[str, Any] = {"divisor": None, "score": None} if softmax else {"softcap": None}
            _run_backward(replace(p, softmax=softmax, **own))
        return
    p = SANITIZER_PROBLEMS[name]
    gpu = Gpu()
    host = _inputs(p)
    out_shape = (host["q"].shape[0], p.heads, p.value_dim)
    arrays: dict[str, Any] = {field: gpu.array(values) for field, values in host.items()}
    arrays["out"] = gpu.empty(int(np.prod(out_shape)) * 2)
    if p.softmax:
        arrays["lse"] = gpu.empty(out_shape[0] * p.heads * 4)
    _run(pack(p, {field: array.address for field, array in arrays.items()}))
    out = as_float(arrays["out"].read(np.uint16, out_shape), p.dtype)
    expected = _expected(p, host)
    error = float(np.linalg.norm(out - expected) / np.linalg.norm(expected))
    if not error < 1e-2:
        raise RuntimeError(f"the result is wrong: relative error {error:.2e}")


def _run_backward(p: Problem) -> None:
    """Forward, then both modes backward. What is checked holds whatever the score function: the sums over all elements
    of dq * q and dk * k are equal, and so are those of dv * v and dout * out; both modes give the same gradients."""
    gpu = Gpu()
    host = _inputs(p)
    out_shape = (host["q"].shape[0], p.heads, p.value_dim)
    host["dout"] = ROUND[p.dtype](np.random.default_rng(6).standard_normal(out_shape).astype(np.float32))
    arrays: dict[str, Any] = {field: gpu.array(values) for field, values in host.items()}
    arrays["out"] = gpu.empty(int(np.prod(out_shape)) * 2)
    arrays["lse"] = gpu.empty(out_shape[0] * p.heads * 4)
    biases = [name for name in ("bias", "position", "time") if name in host]
    for name in ("q", "k", "v", *biases):
        arrays[f"d{name}"] = gpu.empty(host[name].nbytes)
    addresses = {field: array.address for field, array in arrays.items()}
    if not p.softmax:
        addresses["lse"] = 0
    _run(pack(p, addresses))

    def read(name: str, shape: tuple[int, ...]) -> Array:
        return np.asarray(as_float(arrays[name].read(np.uint16, shape), p.dtype), np.float64)

    found = []
    for deterministic in (False, True):
        _run(pack(p, addresses, backward=True, deterministic=deterministic))
        found.append([read(f"d{name}", host[name].shape) for name in "qkv"])
        if biases:
            found[-1] += _bias_gradients(p, arrays, host, found[-1][0])
    q, k, v, do = (np.asarray(as_float(host[name], p.dtype), np.float64) for name in ("q", "k", "v", "dout"))
    dq, dk, dv = found[0][:3]
    for what, left, right in (("dq * q", dq * q, dk * k), ("dv * v", dv * v, do * read("out", out_shape))):
        size = float(np.linalg.norm(left) + np.linalg.norm(right))
        if not (size > 0 and abs(float(left.sum() - right.sum())) < 0.05 * size):
            raise RuntimeError(f"wrong gradients: {what} sums to {left.sum()}, its counterpart to {right.sum()}")
    for name, a, b in zip(("q", "k", "v", *biases), *found, strict=True):
        if not float(np.linalg.norm(a - b)) <= 1e-2 * float(np.linalg.norm(a)):
            raise RuntimeError(f"the deterministic d{name} is another one")
