"""Checks and benchmarks of warploom.matmul on a GPU.

Checks: products of small integers, whose sums are exact in float32, so only the last rounding may differ; the output
lies in a larger tensor of NaN, which must stay NaN around it. Kernels are chosen by the shape, so the shapes are picked
to meet every row of the table, every way to store and every edge.
"""

from __future__ import annotations

from typing import Any

import torch
import warploom as wl
from gpu_gemm_cases import BENCHMARKS, CHECKS

DEVICE = "cuda"
UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


def _integers(
    generator: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype, pad: int, least: int = -3
) -> torch.Tensor:
    aligned = 16 // dtype.itemsize
    width = -(-shape[-1] // aligned) * aligned + (aligned if pad else 0)
    whole = torch.full((*shape[:-1], width), float("nan"), device=DEVICE).to(dtype)
    part = whole[..., : shape[-1]]
    part.copy_(torch.randint(least, 4, shape, generator=generator, device=DEVICE).to(dtype))
    return part


def check(name: str) -> tuple[bool, float, float, str]:
    """(ok, error, limit, message); the error is in units of the output's rounding."""
    p = CHECKS[name]
    generator = torch.Generator(device=DEVICE).manual_seed(sum(map(ord, name)))
    eight_bits = p.dtype == "fp8"
    dtype, result = DTYPES[p.dtype], DTYPES[p.out or ("bf16" if eight_bits else p.dtype)]
    of_bias = dtype if not eight_bits else torch.bfloat16 if result == torch.float32 else result
    outer = (p.batch,) if p.batch else ()
    least = 0 if p.positive else -3
    a = _integers(generator, (*outer, p.rows, p.depth), dtype, p.pad, least)
    b = _integers(generator, (*(() if p.one_b else outer), p.columns, p.depth), dtype, p.pad, least)
    shape = (*outer, p.rows, p.columns)
    keywords: dict[str, Any] = {"alpha": 0.25}
    expected = z = 0.25 * (a.double() @ b.double().transpose(-1, -2))
    if p.scaled:  # powers of two, so that the sums stay exact
        keywords |= {"scale_a": torch.tensor(0.5, device=DEVICE), "scale_b": torch.tensor([0.0625], device=DEVICE)}
        expected = z = z / 32
    if p.fused:
        bias, c = _integers(generator, (p.columns,), of_bias, 0), _integers(generator, shape, result, p.pad)
        keywords |= {"bias": bias, "activation": "silu", "c": c, "beta": 0.5}
        z = expected + bias.double()
        expected = torch.nn.functional.silu(z) + 0.5 * c.double()
    width = -(-p.columns // 8) * 8 + p.pad
    whole = torch.full((*outer, p.rows + (3 if p.pad else 0), width), float("nan"), dtype=result, device=DEVICE)
    out = whole[..., : p.rows, : p.columns]
    if p.c_is_out:
        keywords["c"] = out.copy_(keywords["c"])
    found = wl.matmul(a, b, out=out, out_dtype=result, **keywords)
    assert found is out
    limit = UNIT[result] * expected.abs()
    if p.fused:
        limit += _silu_limit(z, result)
    excess = (out.double() - expected).abs() - limit
    worst = float(excess.max()) if excess.numel() else 0.0
    if not worst <= 0:
        place = [int(i) for i in torch.unravel_index(excess.nan_to_num(1e30).argmax(), excess.shape)]
        values = float(out[tuple(place)]), float(expected[tuple(place)])
        return False, worst, 0.0, f"at {place}: {values[0]} instead of {values[1]}"
    around = whole.clone()
    around[..., : p.rows, : p.columns] = float("nan")
    # Rows that are no multiple of 16 bytes are stored value by value: nothing beyond them is touched.
    if not bool(around.isnan().all()):
        return False, 1.0, 0.0, "values outside the result were written"
    if p.c_is_out:
        return True, 0.0, 0.0, ""
    same = torch.equal(wl.matmul(a, b, out_dtype=result, **keywords), out)
    return same, float(not same), 0.0, "" if same else "a second run differs"


def _silu_limit(z: torch.Tensor, result: torch.dtype) -> torch.Tensor:
    """What the instructions may be wrong by: tanh.approx 2^-11 of its result (PTX ISA), on h = z / 2, where silu is
    h + h tanh h; in float32 results ex2 and rcp, whose argument is rounded too."""
    if result != torch.float32:
        return (z / 2 * torch.tanh(z / 2)).abs() * 2.0**-11 + 1e-15
    return torch.nn.functional.silu(z).abs() * 2.0**-18 + 1e-15


def benchmark(name: str, rotated_bytes: int) -> tuple[dict[str, Any], int, float, int]:
    """(calls, input sets, FLOPs, bytes that must move): ours and cuBLAS through torch, or with its silu after it."""
    case = BENCHMARKS[name]
    m, n, k = case.rows, case.columns, case.depth
    moved = DTYPES[case.dtype].itemsize * (m * k + n * k) + 2 * m * n
    sets = max(2, -(-rotated_bytes // moved))
    generator = torch.Generator(device=DEVICE).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(generator=generator)

    a = [normal(m, k) for _ in range(sets)]
    b = [normal(n, k).mul_(k**-0.5) for _ in range(sets)]
    bias = normal(n)
    calls: dict[str, Any]
    if case.dtype == "fp8":
        one = torch.ones((), device=DEVICE)
        a, b = ([x.to(torch.float8_e4m3fn) for x in each] for each in (a, [x * k**0.5 for x in b]))
        calls = {
            "warploom": lambda i: wl.matmul(a[i], b[i], scale_a=one, scale_b=one),
            "torch": lambda i: torch._scaled_mm(a[i], b[i].T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        }
    elif case.fused:
        calls = {
            "warploom": lambda i: wl.matmul(a[i], b[i], bias=bias, activation="silu"),
            "torch": lambda i: torch.nn.functional.silu(torch.nn.functional.linear(a[i], b[i], bias)),
        }
    else:
        calls = {"warploom": lambda i: wl.matmul(a[i], b[i]), "cublas": lambda i: torch.mm(a[i], b[i].T)}
    return calls, sets, 2.0 * m * n * k, moved
