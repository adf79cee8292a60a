"""Attention as users compute it in torch today, measured for `warploom bench attention --peers`.

The command starts this script and asks one question a line, as JSON; each is answered by one line of JSON:

    {"hello": 1}                                          -> {"torch": version}
    {"prepare": case, "operator": "hstu" | "softmax", "lengths": [...], "heads": H, "head_dim": D, "causal": bool,
     "dtype": "fp32" | "bf16" | "fp16"}                   -> {"implementations": [...]}
    {"measure": implementation, "backward": bool}         -> {"ms": milliseconds of one run}

Errors are answered as {"error": text}. Implementations:

    torch-padded  batches of 32 sequences padded to their longest, eager
    torch-loop    one sequence after the other, eager
    torch-sdpa    softmax only: torch's fused scaled_dot_product_attention, one sequence after the other
    torch-sgemm   a float32 matrix product of 2048 x 2048 x 2048

Padding and unpadding are not timed, and neither is making the inputs. Backward is timed alone; the forward it needs is
run before the clock starts, batch by batch, because the score matrices of all batches at once would not fit in memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

BATCH = 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Batch:
    """Some sequences as (sequences, heads, length, dim) tensors, and what computes their attention."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention: Attention) -> None:
        self.inputs = [q, k, v]
        self.attention = attention
        self.dout = torch.randn_like(q)

    def forward_ms(self) -> float:
        with torch.no_grad():
            start = time.perf_counter()
            self.attention(*self.inputs)
            return 1e3 * (time.perf_counter() - start)

    def backward_ms(self) -> float:
        inputs = [tensor.detach().requires_grad_() for tensor in self.inputs]
        out = self.attention(*inputs)
        start = time.perf_counter()
        torch.autograd.grad(out, inputs, self.dout)
        return 1e3 * (time.perf_counter() - start)


def hstu(mask: torch.Tensor | None, alpha: float, divisor: float) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.nn.functional.silu(torch.matmul(q, k.transpose(-1, -2)) * alpha) / divisor
        return torch.matmul(scores if mask is None else scores * mask, v)

    return attention


def softmax(mask: torch.Tensor | None, alpha: float) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(q, k.transpose(-1, -2)) * alpha
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return torch.matmul(torch.softmax(scores, dim=-1), v)

    return attention


def sdpa(causal: bool, alpha: float) -> Attention:
    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=alpha)

    return attention


class Problem:
    """One case: the batches of each implementation."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.softmax = question["operator"] == "softmax"
        self.lengths: list[int] = [length for length in question["lengths"] if length > 0]
        self.heads: int = question["heads"]
        self.dim: int = question["head_dim"]
        self.causal: bool = question["causal"]
        self.dtype = DTYPES[question["dtype"]]
        self.alpha = self.dim**-0.5
        self.divisor = float(max(self.lengths, default=1))
        torch.manual_seed(0)
        self.batches = {
            "torch-padded": [self.padded(self.lengths[b : b + BATCH]) for b in range(0, len(self.lengths), BATCH)],
            "torch-loop": [self.padded([length]) for length in self.lengths],
        }
        if self.softmax:
            self.batches["torch-sdpa"] = [self.padded([length], fused=True) for length in self.lengths]

    def padded(self, lengths: list[int], fused: bool = False) -> Batch:
        longest = max(lengths)
        q, k, v = (torch.randn(len(lengths), self.heads, longest, self.dim).to(self.dtype) for _ in range(3))
        position = torch.arange(longest)
        mask = None
        if self.causal or len(lengths) > 1:
            seen = position[None, :] < torch.tensor(lengths)[:, None]
            mask = seen[:, None, None, :].expand(-1, 1, longest, longest)
            if self.causal:
                mask = mask & (position[None, :] <= position[:, None])
            mask = mask.to(self.dtype)
        if fused:
            return Batch(q, k, v, sdpa(self.causal, self.alpha))
        attention = softmax(mask, self.alpha) if self.softmax else hstu(mask, self.alpha, self.divisor)
        return Batch(q, k, v, attention)

    def measure(self, implementation: str, backward: bool) -> float:
        batches = self.batches[implementation]
        return sum(batch.backward_ms() if backward else batch.forward_ms() for batch in batches)


def sgemm_ms() -> float:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    torch.mm(a, b)
    start = time.perf_counter()
    torch.mm(a, b)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0, help="threads of torch; 0: torch's own choice")
    threads = parser.parse_args().threads
    if threads > 0:
        torch.set_num_threads(threads)

    problem: Problem | None = None
    for line in sys.stdin:
        question = json.loads(line)
        answer: dict[str, Any]
        try:
            if "hello" in question:
                answer = {"torch": torch.__version__}
            elif "prepare" in question:
                problem = None  # the memory of the case before
                problem = Problem(question)
                answer = {"implementations": list(problem.batches)}
            elif question["measure"] == "torch-sgemm":
                answer = {"ms": sgemm_ms()}
            elif problem is not None:
                answer = {"ms": problem.measure(question["measure"], question["backward"])}
            else:
                answer = {"error": "measure before prepare"}
        except (RuntimeError, KeyError, MemoryError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
