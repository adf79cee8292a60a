"""The in-kernel tracer on a GPU (docs/tracer.md), run by hand: python bench/gpu_trace.py

For each product and level of detail: marks change no bit of the result, stand in the order that the kernel's barriers
promise, and are counted when the buffer is full; and what they cost.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from warploom import _layout, _library, _matmul

# (rows, columns, depth): cooperative tiles, ping-pong, a sum over a cluster, ragged edges.
PRODUCTS = ((8192, 8192, 8192), (65536, 2048, 512), (64, 4096, 4096), (1000, 1000, 1000))
SMALL_CAPACITY = 40


def check(rows: int, columns: int, depth: int, detail: str) -> list[str]:
    a, b = (torch.randn(n, depth, device="cuda", dtype=torch.bfloat16) for n in (rows, columns))
    out = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
    matrices: list[Any] = [a.data_ptr(), 0, depth, b.data_ptr(), 0, depth, 0, 0, 0, out.data_ptr(), 0, columns]
    matrices += [0, 1.0, 0.0]
    dtype = _layout.BFLOAT16
    call = _matmul._pack(dtype, dtype, 0, 0, 0, (1, rows, columns, depth), matrices)
    _library.check(_library.library.warploom_gemm_run(call))
    torch.cuda.synchronize()
    plain = out.clone()
    out.fill_(float("nan"))
    answer = trace(call, {"detail": detail, "rounds": 15, "compare": True})
    faults = [] if torch.equal(out, plain) else ["the traced kernel's result differs from the plain one's"]
    faults += faults_of(answer, lost=False)
    small = trace(call, {"detail": detail, "capacity": SMALL_CAPACITY})
    faults += faults_of(small, lost=True)
    if small["marks"] + small["lost"] != answer["marks"]:
        faults.append(
            f"{small['marks']} marks and {small['lost']} lost ones are not the {answer['marks']} of a large buffer"
        )
    timing, name = answer["timing"], f"{rows}x{columns}x{depth} {detail}"
    print(f"{name}: {timing['plain_ms']:.4f} ms, {timing['slow_down_percent']:+.2f} % with marks")
    return faults


def trace(call: bytes, request: dict[str, Any]) -> Any:
    return _library.json_text("warploom_trace_gemm", call, json.dumps(request).encode())


def faults_of(answer: dict[str, Any], lost: bool) -> list[str]:
    faults = list(answer["order"]["violations"])
    if answer["order"]["checked"] == 0:
        faults.append("no pair of marks to check")
    if (answer["lost"] > 0) != lost:
        faults.append(f"{answer['lost']} marks lost")
    return faults


def main() -> int:
    _library.add_cuda_library_directories()
    failed = False
    for product in PRODUCTS:
        for detail in ("rings", "steps"):
            for fault in check(*product, detail):
                print(f"  {fault}")
                failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
