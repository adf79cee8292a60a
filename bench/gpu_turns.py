"""One of several processes that take turns on a GPU: calls of two kernels and more until the time is over.

gpu_turns.py OPERATOR HEAD_DIM SECONDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import torch
import warploom as wl

LENGTHS = [100 + 173 * n % 500 for n in range(200)]  # many short sequences: thousands of work items a call
HEADS = 4


def main() -> None:
    operator, dim, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0).int().cuda()
    shape = (sum(LENGTHS), HEADS, dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend = wl.softmax_attention if operator == "softmax" else wl.hstu_attention
    longest = max(LENGTHS)
    out = attend(q, k, v, cu_seqlens, mask=wl.Mask(right=0), max_seqlen_q=longest, max_seqlen_k=longest)
    dout = torch.randn_like(out)
    few = torch.randn(8, 16, 8, 128, device="cuda", dtype=torch.bfloat16)
    many = torch.randn(8, 16384, 8, 128, device="cuda", dtype=torch.bfloat16)
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for _ in range(10):
            torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
            wl.softmax_attention(few, many, many)  # short queries: parts, then their sum
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
