"""Ways to compute silu and 2^x in the kernels: their errors against float64 and the clocks they take on this GPU.

    python bench/gpu_activations.py          errors, and clocks of a warp's tile of 16 rows x 64 keys
    tests/emulator/run python bench/gpu_activations.py errors   errors alone, without a GPU: special functions are exact

Clocks are an SM's for 12 warps of a tile each (three CTAs of four), alone and beside the tensor core's products of a
head of 64 and 128, which a mma.sync kernel's warp issues between them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import gpu_driver
import numpy as np
from gpu_driver import Array, Gpu
from gpu_report import KERNELS

SOURCE = KERNELS / "laboratory" / "activations.cu"
SILU = ("tanh", "tanh_guarded", "logistic", "logistic_quarter", "logistic_half")
EXP2 = ("exp2", "exp2_quarter", "exp2_half", "exp2_all")
HEAD_DIMS = (0, 64, 128)
CTAS_PER_SM, STEPS = 3, 2000
SHARED_BYTES = 72 * 1024  # so that no SM holds a fourth CTA
# The forms that kernels use, and the largest relative errors that they may have.
LIMITS = {"tanh_guarded": 5e-3, "logistic": 2e-5, "exp2": 1e-6}


def defines_of(form: str, head_dim: int) -> tuple[str, ...]:
    return f"WARPLOOM_FORM={form}", f"WARPLOOM_HEAD_DIM={head_dim}"


def values(gpu: Gpu, form: str, x: Array) -> Array:
    out = gpu.filled(x.nbytes)
    gpu.launch(
        SOURCE, "activation_values", gpu.array(x), out, len(x),
        grid=-(-len(x) // 256), block=256, defines=defines_of(form, 0),
    )  # fmt: skip
    return out.read(np.float32, x.shape)


def points(count: int) -> Array:
    """z in [-40, 40]: evenly spaced, and more of them near 0."""
    even = np.linspace(-40, 40, count)
    small = np.geomspace(1e-6, 1, count // 4)
    return np.concatenate((even, small, -small))


def errors(gpu: Gpu, form: str, count: int) -> dict[str, float]:
    """The largest relative error of silu(z), z in [-40, 40], or of 2^z, z in [-40, 0]; silu's also by parts of the
    interval, and the largest absolute one."""
    z = points(count)
    if form in EXP2:
        z = z[z <= 0]
        x = z.astype(np.float32)
        expected = np.exp2(x.astype(np.float64))
    else:
        x = (z / 2).astype(np.float32)
        z = x.astype(np.float64) * 2
        expected = z / (1 + np.exp(-z))
    difference = np.abs(values(gpu, form, x) - expected)
    relative = difference / np.maximum(np.abs(expected), 1e-300)
    found = {"relative": float(relative.max()), "absolute": float(difference.max())}
    for name, low, high in (("-40..-6", -40, -6), ("-6..0", -6, 0), ("0..40", 0, 40)):
        inside = (z >= low) & (z <= high) & (expected != 0)
        if inside.any():
            found[name] = float(relative[inside].max())
    return found


def clocks(gpu: Gpu, form: str, head_dim: int, sms: int) -> float:
    """An SM's, for a tile of each of its 12 warps."""
    ctas = sms * CTAS_PER_SM
    seen = gpu.empty(8 * ctas)
    shape = {"grid": ctas, "block": 128, "shared": SHARED_BYTES}
    for _ in range(2):
        gpu.launch(SOURCE, "activation_clocks", seen, STEPS, **shape, defines=defines_of(form, head_dim))
    return float(np.median(seen.read(np.int64, (ctas,)))) / STEPS


def check(gpu: Gpu, count: int) -> None:
    """Raises AssertionError when a form that kernels use is less exact than they need."""
    for form, limit in LIMITS.items():
        found = errors(gpu, form, count)["relative"]
        assert found <= limit, f"{form}: relative error {found:.2e}, limit {limit}"


def multiprocessors(gpu: Gpu) -> int:
    count = ctypes.c_int()
    gpu.call("cuDeviceGetAttribute", ctypes.byref(count), 16, 0)
    return count.value


def main(arguments: list[str]) -> None:
    if "WARPLOOM_EMULATOR_NVRTC" in os.environ:
        gpu_driver.find_nvrtc = lambda: ctypes.CDLL("libnvrtc.so.13")
    gpu = Gpu()
    columns = ("relative", "-40..-6", "-6..0", "0..40", "absolute")
    timed = arguments[:1] != ["errors"]
    header: list[Any] = ["form", *columns, *([f"D{d}" if d else "alone" for d in HEAD_DIMS] if timed else [])]
    print(" | ".join(header))
    for form in (*(("copy",) if timed else ()), *SILU, *EXP2):
        row = [form]
        found = {} if form == "copy" else errors(gpu, form, 400_001 if timed else 20_001)
        row += [f"{found[c]:.1e}" if c in found else "-" for c in columns]
        if timed:
            row += [f"{clocks(gpu, form, dim, multiprocessors(gpu)):.0f}" for dim in HEAD_DIMS]
        print(" | ".join(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
