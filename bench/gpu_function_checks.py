"""Users' score and mask functions on a GPU: torch's machinery around them, parameters, messages, what explain says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import warploom as wl
from gpu_cases import FUNCTION_CHECKS
from gpu_checks import DEVICE, _all, _cumulative, _refusal, _registered, _same
from gpu_reference import Verdict
from torch import Tensor

SCORE = wl.ScoreFunction("z * tanh(softplus(beta * z))", beta=1.2)
MASK = wl.MaskFunction("[0, nc), [max(nc, r - w), r + 1)", num_contexts=3, w=70)
OPTIONS: dict[str, Any] = {
    "max_seqlen_q": 130,
    "max_seqlen_k": 130,
    "divisor": 10.0,
    "score": SCORE,
    "mask": MASK,
    "deterministic": True,
}


def run(name: str) -> Verdict:
    return CHECKS[name]()


def _tensors() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, dout, cu_seqlens"""
    torch.manual_seed(4)
    q, k, v, dout = (torch.randn(200, 2, 64, device=DEVICE).bfloat16() for _ in range(4))
    return q, k, v, dout, _cumulative((70, 130))


def autograd() -> Verdict:
    """out.backward() gives what the function without autograd gives."""
    q, k, v, dout, cu = _tensors()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    wl.hstu_attention(*leaves, cu, **OPTIONS).backward(dout)
    expected = wl.hstu_attention_backward(dout, q, k, v, cu, **OPTIONS)
    same = all(
        leaf.grad is not None and torch.equal(leaf.grad, x) for leaf, x in zip(leaves, expected[:3], strict=True)
    )
    return _same(same, "autograd's gradients differ")


def opcheck() -> Verdict:
    from warploom._arguments import flatten, hstu_extras

    q, k, v, dout, cu = _tensors()
    flat = flatten(q, k, v, cu, None, MASK, None, None, 130, 130, None, None, True, False) + hstu_extras(
        10.0, True, SCORE
    )
    leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    return _registered("hstu", (dout, *flat, [False, False, False]), (*leaves, *flat[3:]))


def torch_compile() -> Verdict:
    q, k, v, dout, cu = _tensors()

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return wl.hstu_attention(q * 2, k, v, cu, **OPTIONS) + 1

    def gradient(function: Any) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = function(*leaves)
        return [out, *torch.autograd.grad(out, leaves, dout)]

    compiled, eager = gradient(torch.compile(step, fullgraph=True)), gradient(step)
    same = all(torch.equal(a, b) for a, b in zip(compiled, eager, strict=True))
    return _same(same, "torch.compile changes the result")


def graph_capture() -> Verdict:
    """Lengths change between replays: the mask's intervals are computed anew."""
    q, k, v, _, cu = _tensors()
    wl.hstu_attention(q, k, v, cu, **OPTIONS)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = wl.hstu_attention(q, k, v, cu, **OPTIONS)
    for middle in (70, 100, 120):
        cu.copy_(_cumulative((middle, 200 - middle)))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(captured, wl.hstu_attention(q, k, v, cu, **OPTIONS)):
            return _same(False, "a replayed graph differs from the call")
    return _same(True, "")


def parameters() -> Verdict:
    """Another value gives another result and compiles nothing; the same text is the same function."""
    q, k, v, _, cu = _tensors()

    def attend(beta: float, window: int) -> Tensor:
        score = wl.ScoreFunction("z * sigmoid(beta * z)", beta=beta)
        mask = wl.MaskFunction("[r - w, r + 1)", w=window)
        return wl.hstu_attention(q, k, v, cu, **{**OPTIONS, "score": score, "mask": mask})

    first = attend(1.0, 20)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    other = attend(2.0, 20)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    silu = wl.hstu_attention(q, k, v, cu, **{**OPTIONS, "score": None, "mask": wl.Mask(left=20, right=0)})
    near = (first.float() - silu.float()).norm() <= 1e-2 * silu.float().norm()
    return _all(
        [
            _same(not torch.equal(first, other), "beta = 2 gives what beta = 1 gives"),
            _same(not torch.equal(first, attend(1.0, 30)), "w = 30 gives what w = 20 gives"),
            _same(bool(near), "z * sigmoid(1.0 * z) under a window is not silu under that window"),
            _same(seconds < 0.5, f"a parameter's other value took {seconds:.2f} s: something was compiled"),
        ]
    )


def messages() -> Verdict:
    q, k, v, _, cu = _tensors()
    plan = wl.explain(q, k, v, cu, **OPTIONS)
    kernels = " ".join(launch["kernel"] for launch in plan["launches"])
    return _all(
        [
            _refusal(lambda: wl.ScoreFunction("z * sigmod(z)"), ValueError, ("sigmoid", "^~~~~~")),
            _refusal(lambda: wl.softmax_attention(q, k, v, cu, score=SCORE), TypeError, ("score",)),
            _refusal(
                lambda: wl.hstu_attention(q, k, v, cu, mask=wl.MaskFunction("[0, w)", w=2**40)), ValueError, ("w",)
            ),
            _same("mma.sync" in kernels, f"explain names {kernels}"),
            _same(plan["score_function"]["derived"], "explain does not tell a derived slope"),
        ]
    )


CHECKS: dict[str, Callable[[], Verdict]] = {name: globals()[name.replace("-", "_")] for name in FUNCTION_CHECKS}
