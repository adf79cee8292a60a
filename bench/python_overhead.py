"""What a call costs in Python: one-token CPU tensors, warm, in microseconds.

    .venv/bin/python bench/python_overhead.py [--json FILE]

Each figure is the least of many short rounds, so that other work on the machine does not count as ours; the median
round stands beside it. The target is 25 us for an eager call on torch tensors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import warploom as wl

TARGET_US = 25.0


def rounds_us(call: Callable[[], Any], calls: int = 200, rounds: int = 200) -> list[float]:
    """Processor time of a call in each round, in microseconds: the calling thread's, which waits for nobody here."""
    for _ in range(calls):
        call()
    results = []
    for _ in range(rounds):
        begin = time.thread_time_ns()
        for _ in range(calls):
            call()
        results.append((time.thread_time_ns() - begin) / calls / 1000)
    return results


def cases() -> dict[str, Callable[[], Any]]:
    q = torch.randn(1, 4, 64)
    cu = torch.tensor([0, 1], dtype=torch.int32)
    array, cu_array = q.numpy(), cu.numpy()
    leaf = q.clone().requires_grad_()
    ones = torch.ones_like(q)
    bias = wl.BucketedBias(position=torch.zeros(1, 64))
    mask = wl.Mask(right=0, num_contexts=0, num_targets=1)

    def backward() -> None:
        wl.hstu_attention(leaf, q, q, cu).backward(ones)

    return {
        "hstu_attention, torch": lambda: wl.hstu_attention(q, q, q, cu),
        "hstu_attention, torch, every keyword": lambda: wl.hstu_attention(
            q, q, q, cu, cu, mask=mask, bias=bias, alpha=0.1, divisor=2.0, max_seqlen_q=1, max_seqlen_k=1
        ),
        "softmax_attention with lse, torch": lambda: wl.softmax_attention(q, q, q, cu, return_lse=True),
        "hstu_attention, torch, recorded by autograd": lambda: wl.hstu_attention(leaf, q, q, cu),
        "hstu_attention and backward, autograd": backward,
        "hstu_attention_backward, torch": lambda: wl.hstu_attention_backward(ones, q, q, q, cu),
        "hstu_attention, NumPy": lambda: wl.hstu_attention(array, array, array, cu_array),
        "for comparison: torch.nn.functional.scaled_dot_product_attention": lambda: (
            torch.nn.functional.scaled_dot_product_attention(q[None], q[None], q[None])
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE (- is standard output)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for name, call in cases().items():
        results = rounds_us(call)
        records.append({"case": name, "least_us": min(results), "median_us": statistics.median(results)})
        if arguments.json != "-":
            print(f"{records[-1]['least_us']:7.2f} us (median {records[-1]['median_us']:7.2f})  {name}", flush=True)
    if arguments.json:
        text = json.dumps({"target_us": TARGET_US, "records": records}, indent=2)
        if arguments.json == "-":
            print(text)
        else:
            with open(arguments.json, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
