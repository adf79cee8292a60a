"""The rungs of both ladders (docs/flash-attention-ladder.md, docs/gemm-ladder.md) on a GPU, each against float64."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gpu_device_tests
import numpy as np
import torch
from gpu_cases import Problem, rungs_of
from gpu_driver import Array, TensorMap
from gpu_reference import Inputs, Verdict, judge
from gpu_report import ROOT

ATTENTION, GEMM = ROOT / "examples/ladder", ROOT / "examples/gemm_ladder"
ATTENTION_RUNGS, GEMM_RUNGS = rungs_of("examples/ladder"), rungs_of("examples/gemm_ladder")
DIM = 128

# (sequences, query rows, key rows, heads): one row, the tiles' edges, several tiles, no key at all.
ATTENTIONS = (
    (1, 1, 1, 1),
    (2, 63, 65, 3),
    (1, 64, 64, 1),
    (2, 129, 128, 2),
    (1, 257, 1000, 2),
    (3, 130, 40, 1),
    (1, 70, 0, 2),
)
# (rows, columns, depth): one step, edges, more steps than stages.
PRODUCTS = ((128, 128, 64), (1, 8, 8), (127, 136, 72), (129, 120, 264), (300, 520, 1000))


def prefix_of(folder: Path, rung: dict[str, Any], fields: tuple[str, ...]) -> str:
    values = ", ".join(f".{field} = {rung[field]}" for field in fields)
    return (
        f'#include "{folder.name}/call.h"\n'
        f"namespace warploom::{folder.name} {{ inline constexpr Rung kRung = {{{values}}}; }}\n"
    )


def bits(x: torch.Tensor) -> Array:
    return x.view(torch.int16).numpy().view(np.uint16)


def attention(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, alpha: float) -> torch.Tensor:
    """q: (sequences, rows, heads, 128) in bfloat16, on the CPU."""
    rung = ATTENTION_RUNGS[name]
    gpu = gpu_device_tests.gpu()
    sequences, rows, heads, _ = q.shape
    # Beside the tensors nothing may be read, and all of the result be written.
    inputs = [gpu.array(bits(x)) for x in (q, k, v)]
    out = gpu.filled(q.numel() * 2)
    addresses = np.array([x.address for x in (*inputs, out)], np.uint64)
    sizes = np.array([rows, k.shape[1], heads, sequences], np.int32)
    call = np.concatenate([addresses.view(np.uint8), sizes.view(np.uint8), np.float32([alpha, 0]).view(np.uint8)])
    gpu.launch(
        ATTENTION / rung["file"],
        "attention",
        call,
        grid=-(-rows // rung["query_rows"]) * sequences * heads,
        block=rung["warps"] * 32,
        shared=2 * DIM * (rung["query_rows"] + 2 * rung["stages"] * rung["key_columns"]),
        prefix=prefix_of(ATTENTION, rung, ("query_rows", "key_columns", "warps", "stages", "min_blocks")),
    )
    return torch.from_numpy(out.read(np.uint16, tuple(q.shape)).view(np.int16)).view(torch.bfloat16)


def check_attention(name: str) -> Verdict:
    generator = torch.Generator().manual_seed(5)
    worst = Verdict(True, 0.0, 0.0)
    for sequences, rows, keys, heads in ATTENTIONS:
        q, k, v = (
            torch.randn(sequences, length, heads, DIM, generator=generator).bfloat16() for length in (rows, keys, keys)
        )
        q *= 4  # maxima that move
        alpha = DIM**-0.5
        found = attention(name, q, k, v, alpha)
        slots_q, slots_k = [rows] * sequences, [keys] * sequences
        problem = Problem(name, tuple(slots_q), tuple(slots_k), softmax=True, right=None, dim=DIM, value_dim=DIM)
        inputs = Inputs(
            *(x.flatten(0, 1).cuda() for x in (q, k, v)),
            slots_q, slots_k, slots_q, slots_k, [0] * sequences, [0] * sequences, alpha, 1.0,
        )  # fmt: skip
        verdict = judge(problem, inputs, found.flatten(0, 1).cuda())
        if not verdict.ok:
            verdict.message = f"{sequences} x {heads} heads, {rows} rows, {keys} keys: {verdict.message}"
            return verdict
        worst = max(worst, verdict, key=lambda each: each.error / each.limit if each.limit else 0.0)
    return worst


def check_gemm(name: str) -> Verdict:
    """Small integers, whose sums are exact: only the last rounding may differ."""
    rung = GEMM_RUNGS[name]
    gpu = gpu_device_tests.gpu()
    generator = torch.Generator().manual_seed(6)
    for rows, columns, depth in PRODUCTS:
        a, b = (torch.randint(-3, 4, (n, depth), generator=generator).bfloat16() for n in (rows, columns))
        on_device = [gpu.array(bits(x)) for x in (a, b)]
        out = gpu.filled(rows * columns * 2)
        tiles = -(-rows // 128), -(-columns // 128)
        # The maps are 64-byte aligned in the call, which NumPy does not promise.
        memory = np.zeros(512 // 8, np.uint64)
        call = memory[-(memory.ctypes.data // 8) % 8 :][: 384 // 8]
        for at, (x, length) in enumerate(zip(on_device, (rows, columns), strict=True)):
            shape = TensorMap(x, "uint16", (depth, length), (2 * depth,), (64, 128), 128)
            call[16 * at : 16 * at + 16] = np.ctypeslib.as_array((ctypes.c_uint64 * 16).from_address(shape.address))
        call[32:35] = [x.address for x in (*on_device, out)]
        call[35:40] = np.array([rows, columns, depth, -(-depth // 64), *tiles, 1, 16, 0, 0], np.int32).view(np.uint64)
        gpu.launch(
            GEMM / rung["file"],
            "gemm",
            call,
            grid=tiles[0] * tiles[1],
            block=rung["warpgroups"] * 128,
            shared=rung["stages"] * (2 * 128 * 128 + 16),
            prefix=prefix_of(GEMM, rung, ("stages", "warpgroups")),
        )
        found = torch.from_numpy(out.read(np.uint16, (rows, columns)).view(np.int16)).view(torch.bfloat16)
        expected = (a.double() @ b.double().T).bfloat16()
        if not torch.equal(found, expected):
            place = torch.nonzero(found != expected)[0].tolist()
            values = float(found[tuple(place)]), float(expected[tuple(place)])
            message = f"{rows}x{columns}x{depth} at {place}: {values[0]} instead of {values[1]}"
            return Verdict(False, 1.0, 0.0, message)
    return Verdict(True, 0.0, 0.0)


CHECKS = {
    **{f"attention-{name}": check_attention for name in ATTENTION_RUNGS},
    **{f"gemm-{name}": check_gemm for name in GEMM_RUNGS},
}


def run(name: str) -> Verdict:
    """name: attention-RUNG or gemm-RUNG."""
    return CHECKS[name](name.split("-", 1)[1])
