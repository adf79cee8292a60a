"""The edge suite backward: gradients on CUDA tensors against gpu_backward_reference.py, and what else they promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_backward_reference
import torch
import warploom as wl
from gpu_backward_reference import Gradients
from gpu_cases import BACKWARD_PROBLEMS, BACKWARD_SPECIAL_CHECKS, Problem
from gpu_checks import DEVICE, _int32, _layout, build
from gpu_reference import Inputs, Verdict
from torch import Tensor


def run(name: str) -> Verdict:
    if name in BACKWARD_PROBLEMS:
        return run_problem(BACKWARD_PROBLEMS[name], seed=sum(map(ord, name)))
    return SPECIAL[name]()


def run_problem(problem: Problem, seed: int) -> Verdict:
    """Both modes are judged; the deterministic one must give the same bits again."""
    inputs, call, dout, out = build_backward(problem, seed)
    worst = Verdict(True, 0.0, 0.0)
    for deterministic in (False, True):
        found = differentiate(problem, call, deterministic)
        verdict = gpu_backward_reference.judge(problem, inputs, rows_of(dout), out, found)
        if not verdict.ok:
            verdict.message += " (deterministic)" if deterministic else ""
            return verdict
        if deterministic:
            again = differentiate(problem, call, True)
            if not all(torch.equal(getattr(found, n), getattr(again, n)) for n in ("dq", "dk", "dv")):
                return Verdict(False, 1.0, 0.0, "deterministic gradients differ from call to call")
        if verdict.limit > 0 and (worst.limit == 0 or verdict.error / verdict.limit > worst.error / worst.limit):
            worst = verdict
    return worst


def rows_of(x: Tensor) -> Tensor:
    return x.flatten(0, 1) if x.ndim == 4 else x


def build_backward(problem: Problem, seed: int) -> tuple[Inputs, dict[str, Any], Tensor, Tensor | None]:
    """(inputs, the backward call's arguments, dout, softmax's out by rows). Rows of dout that are not used hold NaN."""
    inputs, call = build(problem, seed)
    generator = torch.Generator(device=DEVICE).manual_seed(seed + 1)
    q, v = call["q"], call["v"]
    batch = len(inputs.slots_q)
    layout = "plain" if problem.layout == "qkv" else problem.layout
    (dout,) = _layout(layout, batch, inputs.q.shape[0], problem.heads, (v.shape[-1],), q.dtype)
    first = 0
    for b, (slot, length) in enumerate(zip(inputs.slots_q, inputs.used_q, strict=True)):
        place = dout[b, :length] if dout.ndim == 4 else dout[first : first + length]
        place.copy_(torch.randn(place.shape, generator=generator, device=DEVICE))
        first += slot
    call["dout"] = dout
    if not problem.softmax:
        return inputs, call, dout, None
    out, lse = gpu_backward_reference.results_of(problem, inputs)
    if dout.ndim == 4:
        call["out"] = out.unflatten(0, (batch, -1))
        call["lse"] = lse.unflatten(1, (batch, -1)).transpose(0, 1).contiguous()
    else:
        call["out"], call["lse"] = out, lse
    return inputs, call, dout, out


def differentiate(problem: Problem, call: dict[str, Any], deterministic: bool) -> Gradients:
    """Through memory that held NaN before."""
    for name in "qkv":
        torch.full_like(call[name], float("nan"))
    function = wl.softmax_attention_backward if problem.softmax else wl.hstu_attention_backward
    found = function(**call, deterministic=deterministic)
    return Gradients(*(rows_of(x) for x in (found.dq, found.dk, found.dv)))


# --- checks that are no single problem --------------------------------------------------------------------------------


def _verdict(ok: bool, message: str) -> Verdict:
    return Verdict(ok, 0.0 if ok else 1.0, 0.0, "" if ok else message)


def _tensors(*shape: int, count: int = 4, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return [torch.randn(shape, generator=generator, device=DEVICE).bfloat16() for _ in range(count)]


def _lengths(*lengths: int) -> Tensor:
    total, sums = 0, [0]
    for length in lengths:
        total += length
        sums.append(total)
    return _int32(sums)


def autograd() -> Verdict:
    """out.backward() gives what the function without autograd gives."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _lengths(70, 130)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = wl.hstu_attention(*leaves, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
    out.backward(dout)
    expected = wl.hstu_attention_backward(dout, q, k, v, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
    same = all(torch.equal(leaf.grad, x) for leaf, x in zip(leaves, expected[:3], strict=True) if leaf.grad is not None)
    return _verdict(same and all(leaf.grad is not None for leaf in leaves), "autograd's gradients differ")


def opcheck() -> Verdict:
    from warploom._arguments import flatten, hstu_extras

    q, k, v, dout = _tensors(200, 2, 64)
    cu = _lengths(70, 130)
    flat = flatten(q, k, v, cu, None, wl.Mask.causal(), None, None, 130, 130, None, None, True, False) + hstu_extras(
        10.0, True
    )
    results = torch.library.opcheck(
        torch.ops.warploom.hstu_attention_backward.default,
        (dout, *flat, [False, False, False]),
        test_utils=("test_schema", "test_faketensor"),
        raise_exception=False,
    )
    leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    results |= {
        f"forward {name}": result
        for name, result in torch.library.opcheck(
            torch.ops.warploom.hstu_attention.default,
            (*leaves, *flat[3:]),
            test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"),
            raise_exception=False,
        ).items()
    }
    bad = {name: result for name, result in results.items() if result != "SUCCESS"}
    return _verdict(not bad, f"{bad}")


def torch_compile() -> Verdict:
    """A compiled training step without a graph break gives the eager gradients."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _lengths(70, 130)

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = wl.hstu_attention(q * 1.0, k, v, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
        return (out * dout).sum()

    gradients = []
    for function in (step, torch.compile(step, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        function(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    same = all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)
    return _verdict(same, "a compiled step's gradients differ")


def graph_capture() -> Verdict:
    """Scratch memory is allocated inside the graph; a replay sees new values."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _lengths(70, 130)

    def call() -> Any:
        return wl.hstu_attention_backward(
            dout, q, k, v, cu, deterministic=True, divisor=10.0, max_seqlen_q=130, max_seqlen_k=130
        )

    def summed() -> Any:
        return wl.hstu_attention_backward(dout, q, k, v, cu, divisor=10.0, max_seqlen_q=130, max_seqlen_k=130)

    call(), summed()  # compiled and loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured, added = call(), summed()
    for seed in range(3):
        q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        torch.cuda.synchronize()
        expected = call()
        if not all(torch.equal(a, b) for a, b in zip(captured[:3], expected[:3], strict=True)):
            return _verdict(False, "a replayed graph differs from the call")
        if not torch.allclose(added.dq.float(), expected.dq.float(), rtol=0.02, atol=0.02):
            return _verdict(False, "a replayed graph's sums for dq are wrong")
    return _verdict(True, "")


def nan_stays_in_its_sequence() -> Verdict:
    q, k, v, dout = _tensors(300, 2, 64)
    cu = _lengths(100, 130, 70)

    def call() -> Any:
        return wl.hstu_attention_backward(
            dout, q, k, v, cu, deterministic=True, divisor=10.0, max_seqlen_q=130, max_seqlen_k=130
        )

    clean = call()
    for x in (q, k, v, dout):
        x[100:230] = float("nan")
    dirty = call()
    outside = [0, *range(1, 100), *range(230, 300)]
    return _verdict(
        all(torch.equal(a[outside], b[outside]) for a, b in zip(clean[:3], dirty[:3], strict=True)),
        "NaN of one sequence reaches another",
    )


def independent_of_the_batch() -> Verdict:
    q, k, v, dout = _tensors(300, 2, 64)

    def call(rows: slice, cu: Tensor, longest: int) -> Any:
        return wl.hstu_attention_backward(
            *(x[rows] for x in (dout, q, k, v)),
            cu,
            deterministic=True,
            divisor=10.0,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
        )

    whole = call(slice(0, 300), _lengths(100, 130, 70), 130)
    alone = call(slice(100, 230), _lengths(130), 500)
    return _verdict(
        all(torch.equal(a[100:230], b) for a, b in zip(whole[:3], alone[:3], strict=True)),
        "a sequence's gradients depend on the batch around it",
    )


SPECIAL: dict[str, Callable[[], Verdict]] = {
    name: globals()[name.replace("-", "_")] for name in BACKWARD_SPECIAL_CHECKS
}
