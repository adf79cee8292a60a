"""What torch runs on a GPU, measured for `warploom bench ladder` and `warploom bench gemm-ladder`.

The command starts this script and asks one question a line, as JSON; each is answered by one line of JSON:

    {"hello": 1}                                                       -> {"torch": version}
    {"prepare": "attention", "sequences": B, "length": L, "heads": H}  -> {"implementations": ["fa2", ...]}
    {"prepare": "gemm", "rows": M, "columns": N, "depth": K}           -> {"implementations": ["cublas"]}
    {"measure": implementation, "round_ms": milliseconds}              -> {"ms": milliseconds of one call}

Errors are answered as {"error": text}. Implementations, all in bfloat16:

    fa2     torch's flash-attention 2: softmax attention forward, full, head dimension 128
    cublas  torch.mm
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Call = Callable[[], Any]
DIM = 128


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").bfloat16()


def attention(sequences: int, length: int, heads: int) -> dict[str, Call]:
    q, k, v = (normal(sequences, length, heads, DIM).transpose(1, 2) for _ in range(3))

    def fa2() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(q, k, v)

    return {"fa2": fa2}


def gemm(rows: int, columns: int, depth: int) -> dict[str, Call]:
    a, b = normal(rows, depth), normal(columns, depth)
    return {"cublas": lambda: torch.mm(a, b.T)}


def time_calls(call: Call, calls: int) -> float:
    """Milliseconds of each of `calls` calls in a row."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def main() -> None:
    calls: dict[str, Call] = {}
    counts: dict[str, int] = {}
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any]
        try:
            if "hello" in question:
                answer = {"torch": torch.__version__}
            elif "prepare" in question:
                calls, counts = {}, {}  # the memory of what was before
                sizes = {name: value for name, value in question.items() if name != "prepare"}
                calls = {"attention": attention, "gemm": gemm}[question["prepare"]](**sizes)
                for name, call in calls.items():
                    time_calls(call, 3)
                    counts[name] = 0
                answer = {"implementations": list(calls)}
            else:
                name = question["measure"]
                if counts[name] == 0:
                    counts[name] = max(1, int(question["round_ms"] / max(1e-3, time_calls(calls[name], 3))))
                answer = {"ms": time_calls(calls[name], counts[name])}
        except (RuntimeError, AssertionError, KeyError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
