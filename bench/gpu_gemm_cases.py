"""The matrix products that gpu_gemm.py checks and measures. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    rows: int
    columns: int
    depth: int
    batch: int = 0  # 0: matrices, else (batch, ...)
    dtype: str = "bf16"
    out: str = ""  # as dtype
    fused: bool = False  # bias, silu, and c with beta
    c_is_out: bool = False
    one_b: bool = False  # one b for the whole batch
    pad: int = 8  # columns between the rows of a tensor
    scaled: bool = False  # with scale_a and scale_b
    positive: bool = False  # no sum cancels: more bits than the tensor core adds 8-bit products with


# Rows, columns and depths around the tiles' edges; large and small, so that every tile is chosen.
_SHAPES = (
    (1, 8, 8),
    (1, 4096, 4096),
    (7, 264, 1000),
    (16, 1040, 2048),
    (64, 4096, 512),
    (64, 4096, 40),
    (65, 2000, 136),
    (128, 4096, 1024),
    (256, 4096, 2048),
    (300, 520, 72),
    (1000, 1000, 64),
    (2049, 1025, 200),
    (4096, 4096, 320),
    (4100, 5000, 4096),
    (20000, 2048, 512),
)
_EIGHT_BITS = ((1, 16, 16), (65, 2000, 144), (2049, 1025, 208), (8192, 8192, 1024))
CHECKS: dict[str, Product] = {
    **{f"{m}x{n}x{k}": Product(m, n, k) for m, n, k in _SHAPES},
    **{f"{m}x{n}x{k}-fused": Product(m, n, k, fused=True) for m, n, k in _SHAPES},
    **{f"{m}x{n}x{k}-fp16-to-fp32": Product(m, n, k, dtype="fp16", out="fp32", fused=True) for m, n, k in _SHAPES[3:]},
    "fp16": Product(1000, 1000, 1000, dtype="fp16", fused=True),
    "bf16-to-fp16": Product(777, 1024, 128, out="fp16"),
    "odd-columns": Product(515, 4099, 264, fused=True),
    "odd-columns-small": Product(33, 251, 264, fused=True),
    "odd-depth": Product(512, 512, 69),
    "no-depth": Product(300, 512, 0),
    "no-depth-fused": Product(5000, 4096, 0, fused=True),
    "c-is-out": Product(3000, 4096, 256, fused=True, c_is_out=True),
    "batch": Product(300, 520, 136, batch=5, fused=True),
    "batch-large": Product(1024, 2048, 512, batch=6),
    "batch-one-b": Product(40, 96, 64, batch=7, one_b=True),
    "rows-folded": Product(40, 4096, 64, batch=100, one_b=True, pad=0),
    "contiguous": Product(4096, 4096, 512, pad=0, fused=True),
    **{f"fp8-{m}x{n}x{k}": Product(m, n, k, dtype="fp8", scaled=True) for m, n, k in _EIGHT_BITS},
    **{f"fp8-{m}x{n}x{k}-fused": Product(m, n, k, dtype="fp8", out="fp16", fused=True) for m, n, k in _EIGHT_BITS[1:3]},
    "fp8-positive": Product(300, 520, 8192, dtype="fp8", out="fp32", positive=True),
    "fp8-positive-large": Product(4096, 2048, 8192, dtype="fp8", out="fp32", positive=True),
    "fp8-to-fp32-fused": Product(777, 1025, 272, dtype="fp8", out="fp32", fused=True, scaled=True),
    "fp8-no-depth": Product(300, 512, 0, dtype="fp8", fused=True),
    "fp8-batch": Product(300, 520, 144, batch=5, dtype="fp8", fused=True, scaled=True),
}

# What compute-sanitizer runs: few rows; A shared in a cluster; K shared out; B shared, and stores by TMA; bias, silu
# and C through shared memory, tiles in turns.
_WATCHED = (
    Product(16, 1032, 1032),
    Product(50, 1032, 264, fused=True),
    Product(100, 2056, 2056, fused=True),
    Product(1500, 2000, 72),
    Product(8200, 1032, 136, fused=True),
)
# initcheck takes minutes for the large ones.
SANITIZED = {"gemm": _WATCHED, "gemm-few-rows": _WATCHED[:3]}
SANITIZED_BY = {"memcheck": "gemm", "synccheck": "gemm", "initcheck": "gemm-few-rows"}

# cuBLAS' best sizes, an HSTU layer's projections plain and fused, and few rows: (rows, columns, depth, bias + silu).
_MEASURED = (
    *((n, n, n, False) for n in (4096, 8192, 16384)),
    *((65536, n, k, fused) for n in (2048, 4096) for k in (512, 1024) for fused in (False, True)),
    *((m, 4096, 4096, False) for m in (1, 16, 64, 128, 256)),
)
BENCHMARKS = {
    **{
        f"gemm-{m}x{n}x{k}-bf16{'-bias-silu' if fused else ''}": Product(m, n, k, fused=fused)
        for m, n, k, fused in _MEASURED
    },
    **{f"gemm-{n}x{n}x{n}-fp8": Product(n, n, n, dtype="fp8") for n in (4096, 8192)},
}
