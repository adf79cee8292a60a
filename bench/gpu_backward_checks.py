"""The edge suite backward: gradients on CUDA tensors against gpu_backward_reference.py, and what else they promise."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_backward_reference
import torch
import warploom as wl
from gpu_backward_reference import Gradients
from gpu_cases import BACKWARD_PROBLEMS, BACKWARD_SPECIAL_CHECKS, Problem
from gpu_checks import DEVICE, _cumulative, _layout, _registered, _same, build
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
            if not all(torch.equal(a, again.named()[name]) for name, a in found.named().items()):
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
    for tensor in (*(call[name] for name in "qkv"), *bias_tensors(call)):
        torch.full_like(tensor, float("nan"), memory_format=torch.contiguous_format)
    function = wl.softmax_attention_backward if problem.softmax else wl.hstu_attention_backward
    found = function(**call, deterministic=deterministic)
    held = found.dbias if isinstance(found.dbias, tuple) else (found.dbias,)
    names = ("dposition", "dtime") if isinstance(found.dbias, tuple) else ("dbias",)
    bias = {name: gradient for name, gradient in zip(names, held, strict=True) if gradient is not None}
    return Gradients(*(rows_of(x) for x in (found.dq, found.dk, found.dv)), bias)


def bias_tensors(call: dict[str, Any]) -> list[Tensor]:
    """What of the call's bias has a gradient."""
    bias = call.get("bias")
    held = (getattr(bias, name, None) for name in ("values", "position", "time"))
    return [tensor for tensor in held if tensor is not None]


# --- checks that are no single problem --------------------------------------------------------------------------------


def _tensors(*shape: int, count: int = 4, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return [torch.randn(shape, generator=generator, device=DEVICE).bfloat16() for _ in range(count)]


def autograd() -> Verdict:
    """out.backward() gives what the function without autograd gives."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out = wl.hstu_attention(*leaves, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
    out.backward(dout)
    expected = wl.hstu_attention_backward(dout, q, k, v, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
    same = all(torch.equal(leaf.grad, x) for leaf, x in zip(leaves, expected[:3], strict=True) if leaf.grad is not None)
    return _same(same and all(leaf.grad is not None for leaf in leaves), "autograd's gradients differ")


def opcheck() -> Verdict:
    from warploom._arguments import flatten, hstu_extras

    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    flat = flatten(q, k, v, cu, None, wl.Mask.causal(), None, None, 130, 130, None, None, True, False) + hstu_extras(
        10.0, True
    )
    leaves = tuple(x.clone().requires_grad_() for x in (q, k, v))
    return _registered("hstu", (dout, *flat, [False, False, False]), (*leaves, *flat[3:]))


def torch_compile() -> Verdict:
    """A compiled training step without a graph break gives the eager gradients."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = wl.hstu_attention(q * 1.0, k, v, cu, deterministic=True, max_seqlen_q=130, max_seqlen_k=130)
        return (out * dout).sum()

    gradients = []
    for function in (step, torch.compile(step, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        function(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    same = all(torch.equal(a, b) for a, b in zip(*gradients, strict=True) if a is not None and b is not None)
    return _same(same, "a compiled step's gradients differ")


def graph_capture() -> Verdict:
    """Scratch memory is allocated inside the graph; a replay sees new values."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))

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
            return _same(False, "a replayed graph differs from the call")
        if not torch.allclose(added.dq.float(), expected.dq.float(), rtol=0.02, atol=0.02):
            return _same(False, "a replayed graph's sums for dq are wrong")
    return _same(True, "")


def sums_on_two_streams() -> Verdict:
    """Two calls share the GPU, each with more work than it holds at once; CTAs of a call wait for one another, those
    that do not run yet must not be among them. dQ by sums against the repeatable one, which has none."""
    lengths = [1 + 173 * b % 1500 for b in range(60)]
    cu = _cumulative(tuple(lengths))
    streams = [torch.cuda.Stream() for _ in range(2)]
    for dim in (64, 128):
        q, k, v, dout = _tensors(sum(lengths), 4, dim)

        def call(deterministic: bool, given: tuple[Tensor, ...] = (dout, q, k, v)) -> Tensor:
            options = {"deterministic": deterministic, "max_seqlen_q": 1500, "max_seqlen_k": 1500}
            return wl.hstu_attention_backward(*given, cu, divisor=100.0, **options).dq

        expected = call(True).float()
        call(False)
        torch.cuda.synchronize()
        found = []
        for _ in range(3):
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(call(False))
        torch.cuda.synchronize()
        # By row and head: a tile that lacks a key's part, or whose sums were not clear, has rows that are far off.
        size = expected.norm(dim=-1)
        error = max(((dq.float() - expected).norm(dim=-1) / size.clamp(min=1e-6)).max().item() for dq in found)
        if not error <= 0.05:
            return Verdict(False, error, 0.05, f"D {dim}: dQ of calls on two streams differs from the repeatable one")
    return _same(True, "")


def processes_take_turns() -> Verdict:
    """More processes than one on the GPU, which it stops and takes up again at any place: all of them must end."""
    seconds, limit = 5, 60
    script = str(Path(__file__).with_name("gpu_turns.py"))
    kinds = [(operator, dim) for operator in ("hstu", "softmax") for dim in (64, 128, 256)]
    running = {
        f"{operator} D {dim}": subprocess.Popen([sys.executable, script, operator, str(dim), str(seconds)])
        for operator, dim in kinds
    }
    faults = []
    until = time.monotonic() + limit
    for name, process in running.items():
        try:
            code = process.wait(max(0.1, until - time.monotonic()))
            if code != 0:
                faults.append(f"{name} ended with {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            faults.append(f"{name} did not end in {limit} s")
    return _same(not faults, ", ".join(faults))


def nan_stays_in_its_sequence() -> Verdict:
    q, k, v, dout = _tensors(300, 2, 64)
    cu = _cumulative((100, 130, 70))

    def call() -> Any:
        return wl.hstu_attention_backward(
            dout, q, k, v, cu, deterministic=True, divisor=10.0, max_seqlen_q=130, max_seqlen_k=130
        )

    clean = call()
    for x in (q, k, v, dout):
        x[100:230] = float("nan")
    dirty = call()
    outside = [0, *range(1, 100), *range(230, 300)]
    return _same(
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

    whole = call(slice(0, 300), _cumulative((100, 130, 70)), 130)
    alone = call(slice(100, 230), _cumulative((130,)), 500)
    return _same(
        all(torch.equal(a[100:230], b) for a, b in zip(whole[:3], alone[:3], strict=True)),
        "a sequence's gradients depend on the batch around it",
    )


def _biases(longest: int, rows: int) -> dict[str, Any]:
    """Every form for 2 heads and lengths 70 and 130."""
    generator = torch.Generator(device=DEVICE).manual_seed(8)

    def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    times = torch.randint(0, 1000, (rows,), generator=generator, device=DEVICE).cumsum(0)
    return {
        "dense": wl.DenseBias(drawn(2, 2, longest, longest)),
        "dense-shared": wl.DenseBias(drawn(1, 1, longest, longest)),
        "packed": wl.PackedBias(drawn(2, 70 * 72 + 130 * 136)),
        "packed-one-head": wl.PackedBias(drawn(1, 70 * 72 + 130 * 132, dtype=torch.float32)),
        "bucketed": wl.BucketedBias(drawn(2, 40, dtype=torch.float32), drawn(1, 30, dtype=torch.float32), times),
    }


def bias_autograd() -> Verdict:
    """out.backward() fills the gradient of every bias tensor that wants one, and of no other, with what the function
    without autograd gives."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    options: dict[str, Any] = {"deterministic": True, "max_seqlen_q": 130, "max_seqlen_k": 130}
    for name, bias in _biases(130, 200).items():
        expected = wl.hstu_attention_backward(dout, q, k, v, cu, bias=bias, **options).dbias
        expected = expected if isinstance(expected, tuple) else (expected,)
        leaves = bias_tensors({"bias": bias})
        for leaf in leaves:
            leaf.requires_grad_()
        wl.hstu_attention(q, k, v, cu, bias=bias, **options).backward(dout)
        for leaf, x in zip(leaves, expected, strict=True):
            if leaf.grad is None or not torch.equal(leaf.grad, x):
                return _same(False, f"{name}: autograd's gradient differs")
    _, time = leaves
    leaves[0].requires_grad_(False)
    time.grad = None
    wl.hstu_attention(q, k, v, cu, bias=bias, **options).backward(dout)
    return _same(time.grad is not None and torch.equal(time.grad, expected[1]), "one table's gradient alone differs")


def bias_does_not_leak() -> Verdict:
    """NaN and infinity where nothing is visible change no bit of any gradient."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    for name, bias in _biases(130, 200).items():
        if name == "bucketed":
            continue
        visible = torch.zeros_like(bias.values, dtype=torch.bool)
        if isinstance(bias, wl.DenseBias):
            for b, length in enumerate((70, 130)):
                visible[b if visible.shape[0] > 1 else 0, :, :length, :length] |= (
                    torch.ones(length, length, device=DEVICE).tril() > 0
                )
        else:
            first = 0
            for length, pitch in ((70, 72), (130, 132 if visible.shape[0] == 1 else 136)):
                part = visible[:, first : first + length * pitch].unflatten(1, (length, pitch))
                part[:, :, :length] = torch.ones(length, length, device=DEVICE).tril() > 0
                first += length * pitch
        found = []
        for outside in (0.0, float("nan"), float("inf")):
            given = type(bias)(torch.where(visible, bias.values, outside))
            call = {"bias": given, "deterministic": True, "max_seqlen_q": 130, "max_seqlen_k": 130}
            found.append(wl.hstu_attention_backward(dout, q, k, v, cu, **call))
        for other in found[1:]:
            if not all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True)):
                return _same(False, f"{name}: what is not visible reaches a gradient")
        if found[0].dbias[~visible].abs().sum() != 0:
            return _same(False, f"{name}: the gradient is not 0 where nothing is visible")
    return _same(True, "")


def whole_bias_does_not_leak() -> Verdict:
    """The same of a dense bias whose rows are whole 16 bytes, with sums for dq in memory (those come in any order)."""
    q, k, v, dout = _tensors(640, 2, 128)
    cu = _cumulative((304, 336))
    values = torch.randn(2, 2, 336, 336, generator=torch.Generator().manual_seed(4)).to(DEVICE).bfloat16()
    visible = torch.zeros_like(values, dtype=torch.bool)
    for b, length in enumerate((304, 336)):
        visible[b, :, :length, :length] = torch.ones(length, length, device=DEVICE).tril() > 0
    options: dict[str, Any] = {"mask": wl.Mask.causal(), "max_seqlen_q": 336, "max_seqlen_k": 336}
    out, lse = wl.softmax_attention(q, k, v, cu, return_lse=True, **options)
    for softmax in (False, True):
        found = []
        for outside in (0.0, float("nan"), float("inf"), float("-inf")):
            call = {"bias": wl.DenseBias(torch.where(visible, values, outside)), **options}
            if softmax:
                found.append(wl.softmax_attention_backward(dout, q, k, v, out, lse, cu, **call))
            else:
                found.append(wl.hstu_attention_backward(dout, q, k, v, cu, **call))
        for other in found[1:]:
            same = all(torch.equal(getattr(found[0], x), getattr(other, x)) for x in ("dk", "dv", "dbias"))
            if not same or not torch.allclose(found[0].dq.float(), other.dq.float(), rtol=0.01, atol=0.01):
                return _same(False, f"softmax {softmax}: what is not visible reaches a gradient")
        if found[0].dbias[~visible].abs().sum() != 0:
            return _same(False, f"softmax {softmax}: the gradient is not 0 where nothing is visible")
    return _same(True, "")


def bias_graph_capture() -> Verdict:
    """Every form captured; a replay sees new values."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    biases = _biases(130, 200)

    def call() -> list[Tensor]:
        options: dict[str, Any] = {"deterministic": True, "divisor": 10.0, "max_seqlen_q": 130, "max_seqlen_k": 130}
        found = []
        for bias in biases.values():
            gradients = wl.hstu_attention_backward(dout, q, k, v, cu, bias=bias, **options)
            found += [*gradients[:3], *(gradients.dbias if isinstance(gradients.dbias, tuple) else (gradients.dbias,))]
        return found

    call()  # compiled and loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call()
    q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(1)))
    graph.replay()
    torch.cuda.synchronize()
    same = all(torch.equal(a, b) for a, b in zip(captured, call(), strict=True))
    return _same(same, "a replayed graph differs from the call")


def bias_large_table() -> Verdict:
    """A table of more times than a pass sums and than shared memory holds, as far as the buckets of a short one."""
    q, k, v, dout = _tensors(200, 2, 64)
    cu = _cumulative((70, 130))
    times = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(2)).cumsum(0).to(DEVICE)
    table = torch.randn(2, 700, device=DEVICE)
    thresholds = torch.arange(1, 700, device=DEVICE) * 3
    options: dict[str, Any] = {"deterministic": True, "max_seqlen_q": 130, "max_seqlen_k": 130}
    bias = wl.BucketedBias(None, table, times, thresholds)
    found = wl.hstu_attention_backward(dout, q, k, v, cu, bias=bias, **options).dbias[1]
    # The same R stored: its gradient, summed by bucket.
    stored = torch.zeros(2, 2, 130, 130, device=DEVICE)
    buckets = []
    for b, (first, length) in enumerate(((0, 70), (70, 130))):
        t = times[first : first + length]
        buckets.append(torch.bucketize((t[:, None] - t).abs(), thresholds, right=True))
        stored[b, :, :length, :length] = table[:, buckets[-1]]
    dense = wl.hstu_attention_backward(dout, q, k, v, cu, bias=wl.DenseBias(stored), **options).dbias
    expected = torch.zeros(2, 700, dtype=torch.float64, device=DEVICE)
    for b, bucket in enumerate(buckets):
        length = bucket.shape[0]
        expected.index_add_(1, bucket.flatten(), dense[b, :, :length, :length].double().flatten(1))
    error = ((found.double() - expected).norm() / expected.norm()).item()
    return Verdict(error <= 1e-5, error, 1e-5, "" if error <= 1e-5 else "a large table's gradient differs")


SPECIAL: dict[str, Callable[[], Verdict]] = {
    name: globals()[name.replace("-", "_")] for name in BACKWARD_SPECIAL_CHECKS
}
