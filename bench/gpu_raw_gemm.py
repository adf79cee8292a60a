"""Matrix products through the C ABI on plain allocations: what compute-sanitizer watches. No torch.

Every array has its exact size. Values are small integers, whose sums are exact, so only the last rounding may differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_device_tests import ROUND, as_float
from gpu_driver import Gpu
from gpu_gemm_cases import SANITIZED, Product
from warploom import _layout, _library, _matmul


def run_case(name: str) -> None:
    """Runs the products of gpu_gemm_cases.SANITIZED[name]. Raises when a result is wrong."""
    _library.add_cuda_library_directories()
    gpu = Gpu()
    random = np.random.default_rng(7)
    for product in SANITIZED[name]:
        _run(gpu, random, product)


def _run(gpu: Gpu, random: Any, p: Product) -> None:
    m, n, k = p.rows, p.columns, p.depth
    host = {
        what: random.integers(-3, 4, shape).astype(np.float32)
        for what, shape in (("a", (m, k)), ("b", (n, k)), ("c", (m, n)), ("bias", (n,)))
    }
    arrays = {what: gpu.array(ROUND["bf16"](values)) for what, values in host.items()}
    out = gpu.empty(2 * m * n)
    c = (arrays["c"].address, 0, n) if p.fused else (0, 0, 0)
    matrices = [arrays["a"].address, 0, k, arrays["b"].address, 0, k, *c, out.address, 0, n]
    matrices += [arrays["bias"].address if p.fused else 0, 0.25, 0.5 if p.fused else 0.0, 0, 0]
    call = _matmul._pack(_layout.BFLOAT16, _layout.BFLOAT16, 0, int(p.fused), 0, (1, m, n, k), matrices)
    _library.check(_library.library.warploom_gemm_run(call))
    found = np.asarray(as_float(out.read(np.uint16, (m, n)), "bf16"), np.float64)
    expected = 0.25 * (host["a"].astype(np.float64) @ host["b"].T.astype(np.float64))
    if p.fused:
        z = expected + host["bias"]
        expected = z / (1 + np.exp(-z)) + 0.5 * host["c"]
    # The rounding of the result, and in silu that of tanh.
    excess = np.abs(found - expected) - 2.0**-8 * np.abs(expected) - (2.0**-10 * np.abs(z) if p.fused else 0)
    if not excess.max() <= 0:
        at = np.unravel_index(excess.argmax(), excess.shape)
        raise RuntimeError(f"{m} x {n} x {k}: {found[at]} instead of {expected[at]} at {at}")
