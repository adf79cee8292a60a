"""Torch's machinery around the operators, forward and backward: autograd, opcheck, streams, graphs whose
lengths change, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import warploom as wl
from gpu_cases import TORCH_CHECKS
from gpu_checks import DEVICE, _cumulative, _int32, _registered, _same
from gpu_reference import Verdict
from torch import Tensor

LONGEST: dict[str, Any] = {"max_seqlen_q": 150, "max_seqlen_k": 150}


def run(name: str) -> Verdict:
    return TORCH[name]()


def _tensors(count: int = 4) -> list[Tensor]:
    """q, k, v, dout: gradients of out come with gaps between rows, as those of a slice do."""
    torch.manual_seed(5)
    made = [torch.randn(200, 2, 64, device=DEVICE).bfloat16() for _ in range(count)]
    made[-1] = torch.randn(200, 3, 64, device=DEVICE).bfloat16()[:, :2]
    return made


def _attend(softmax: bool, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
    if softmax:
        return wl.softmax_attention(q, k, v, cu_seqlens, mask=wl.Mask.causal(), deterministic=True, **LONGEST)
    return wl.hstu_attention(q, k, v, cu_seqlens, divisor=10.0, deterministic=True, **LONGEST)


def _gradients(softmax: bool, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, cu_seqlens: Tensor) -> list[Tensor]:
    """Without autograd."""
    options: dict[str, Any] = {"mask": wl.Mask.causal(), "deterministic": True, **LONGEST}
    if softmax:
        out, lse = wl.softmax_attention(q, k, v, cu_seqlens, return_lse=True, **options)
        return list(wl.softmax_attention_backward(dout, q, k, v, out, lse, cu_seqlens, **options)[:3])
    return list(wl.hstu_attention_backward(dout, q, k, v, cu_seqlens, divisor=10.0, **options)[:3])


def _equal(found: list[Any], expected: list[Tensor]) -> bool:
    return all(a is not None and torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def autograd() -> Verdict:
    """Gradients of both operators, of leaves that need one and only of those."""
    q, k, v, dout = _tensors()
    cu = _cumulative((70, 130))
    for softmax in (False, True):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        _attend(softmax, *leaves, cu).backward(dout)
        expected = _gradients(softmax, q, k, v, dout, cu)
        if not _equal([leaf.grad for leaf in leaves], expected):
            return _same(False, f"softmax {softmax}: autograd's gradients differ from the function's")
        leaf = k.clone().requires_grad_()
        _attend(softmax, q, leaf, v, cu).backward(dout)
        if not _equal([leaf.grad], expected[1:2]):
            return _same(False, f"softmax {softmax}: the gradient of k alone differs")
    return _same(True, "")


def softmax_opcheck() -> Verdict:
    from warploom._arguments import flatten, softmax_extras

    q, k, v, dout = _tensors()
    cu = _cumulative((70, 130))
    flat = flatten(q, k, v, cu, None, wl.Mask.causal(), None, None, 150, 150, None, None, True, False)
    flat += softmax_extras(None)
    out, lse = wl.softmax_attention(q, k, v, cu, mask=wl.Mask.causal(), return_lse=True, **LONGEST)
    leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    return _registered("softmax", (dout, out, lse, *flat, [False, False, False]), (*leaves, *flat[3:]))


def backward_side_stream() -> Verdict:
    """Autograd runs backward on the stream of forward: gradients wait for what was queued there."""
    q, k, v, dout = _tensors()
    cu = _cumulative((70, 130))
    for softmax in (False, True):
        expected = _gradients(softmax, q, k, v, dout, cu)
        leaves = [torch.zeros_like(x).requires_grad_() for x in (q, k, v)]
        late = torch.zeros_like(dout)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            with torch.no_grad():
                for leaf, x in zip(leaves, (q, k, v), strict=True):
                    leaf.copy_(x)
            late.copy_(dout)
            found = torch.autograd.grad(_attend(softmax, *leaves, cu), leaves, late)
        stream.synchronize()
        if not _equal(list(found), expected):
            return _same(False, f"softmax {softmax}: gradients on a side stream did not wait for its work")
    return _same(True, "")


def graph_of_a_step() -> Verdict:
    """Forward and autograd's backward in one graph; values and lengths change between replays."""
    q, k, v, dout = _tensors()
    for softmax in (False, True):
        cu = _cumulative((70, 130))
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiled and loaded before the capture
            torch.autograd.grad(_attend(softmax, *leaves, cu), leaves, dout)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = _attend(softmax, *leaves, cu)
            found = torch.autograd.grad(out, leaves, dout)
        for seed, middle in enumerate((70, 50, 150, 100)):
            torch.manual_seed(seed)
            with torch.no_grad():
                for leaf in leaves:
                    leaf.copy_(torch.randn_like(leaf))
            cu.copy_(_int32((0, middle, 200)))
            for x in (out, *found):
                x.detach().fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            values = [leaf.detach() for leaf in leaves]
            if not torch.equal(out, _attend(softmax, *values, cu)):
                return _same(False, f"softmax {softmax}: a replayed forward differs from the call")
            if not _equal(list(found), _gradients(softmax, *values, dout, cu)):
                return _same(False, f"softmax {softmax}: replayed gradients differ from the call's")
    return _same(True, "")


def fresh_thread() -> Verdict:
    """A thread that has no current CUDA context yet: the call brings its tensors' device."""
    q, k, v, dout = _tensors()
    cu = _cumulative((70, 130))
    expected = [_attend(True, q, k, v, cu), *_gradients(True, q, k, v, dout, cu)]
    torch.cuda.synchronize()
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(_attend(True, q, k, v, cu))
            found.extend(_gradients(True, q, k, v, dout, cu))
            torch.cuda.synchronize()
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if len(found) != len(expected):
        return _same(False, f"a call in a fresh thread failed: {found[-1]}")
    return _same(_equal(found, expected), "a call in a fresh thread gives another result")


TORCH: dict[str, Callable[[], Verdict]] = {name: globals()[name.replace("-", "_")] for name in TORCH_CHECKS}
