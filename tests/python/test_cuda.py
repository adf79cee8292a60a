"""CUDA tensors: what is served there is judged as on the CPU, what is not served says so. Skipped without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import accuracy
import pytest
import torch
import warploom as wl
from hypothesis import assume, given, settings
from problems import Caller, problems
from reference import evaluate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class CudaCaller(Caller):
    def array(self, values: Any, dtype: str | None = None) -> Any:
        return super().array(values, dtype).cuda()

    def numpy(self, value: Any) -> Any:
        return None if value is None else super().numpy(value.cpu())


@settings(max_examples=200)
@given(problems())
def test_forward_on_a_gpu_is_as_accurate_as_the_rule_asks(problem):
    assume(problem.dtype != "float32" and problem.q.shape[2] % 8 == 0 and problem.v.shape[2] % 8 == 0)
    caller = CudaCaller(problem)
    positional, keywords = caller.positional(), caller.keywords()
    exact = evaluate(problem)[0]
    if problem.op == "hstu":
        found = replace(exact, out=caller.jagged(wl.hstu_attention(**positional, **keywords)))
    else:
        out, lse = wl.softmax_attention(**positional, **keywords, return_lse=True)
        found = replace(exact, out=caller.jagged(out), lse=caller.jagged_lse(lse))
    accuracy.check(problem, found)


def call(dtype: torch.dtype = torch.bfloat16, **changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {name: torch.randn(64, 2, 32, device="cuda", dtype=dtype) for name in "qkv"}
    arguments["cu_seqlens_q"] = torch.tensor([0, 20, 64], device="cuda", dtype=torch.int32)
    arguments.update(changes)
    return arguments


def test_work_is_queued_on_the_current_stream():
    arguments = call(max_seqlen_q=44, max_seqlen_k=44)
    expected = wl.hstu_attention(**arguments)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        out = wl.hstu_attention(**arguments)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(out, expected)


def test_compiled_call_equals_the_eager_one_on_a_gpu():
    arguments = call(max_seqlen_q=44, max_seqlen_k=44)
    compiled = torch.compile(lambda **keywords: wl.hstu_attention(**keywords), fullgraph=True)
    assert torch.equal(compiled(**arguments), wl.hstu_attention(**arguments))


def test_dlpack_on_a_gpu_gives_torch():
    class Only:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.tensor.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    arguments = call()
    out = wl.hstu_attention(**{name: Only(value) for name, value in arguments.items()})
    assert torch.equal(out, wl.hstu_attention(**arguments))


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match="cu_seqlens_q"):
        wl.hstu_attention(**call(cu_seqlens_q=torch.tensor([0, 64])))


def test_float32_is_refused():
    with pytest.raises(TypeError, match="float32"):
        wl.hstu_attention(**call(torch.float32))


def test_checked_inputs_name_the_argument():
    bad = torch.tensor([0, 20, 65], device="cuda", dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        wl.hstu_attention(**call(cu_seqlens_q=bad, max_seqlen_q=45, max_seqlen_k=45, check_inputs=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_tensors_on_another_gpu_than_the_current_one_run_there():
    arguments = call(max_seqlen_q=44, max_seqlen_k=44)
    expected = wl.hstu_attention(**arguments)
    there = {name: x.to("cuda:1") if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
    for name in "qkv":
        there[name].requires_grad_()
    assert torch.cuda.current_device() == 0
    out = wl.hstu_attention(**there)
    out.sum().backward()
    assert out.device == there["q"].grad.device == torch.device("cuda:1")
    assert torch.cuda.current_device() == 0
    assert torch.equal(out.cpu(), expected.cpu())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_mixed_gpus_are_refused():
    arguments = call(max_seqlen_q=44, max_seqlen_k=44)
    with pytest.raises(RuntimeError, match=r"\bk\b"):
        wl.hstu_attention(**{**arguments, "k": arguments["k"].to("cuda:1")})


def test_gradients_on_a_gpu_are_those_of_the_cpu():
    for attend in (wl.hstu_attention, wl.softmax_attention):
        gradients = []
        for device in ("cpu", "cuda"):
            arguments = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in call().items()}
            leaves = [arguments[name].requires_grad_() for name in "qkv"]
            attend(**arguments).float().square().sum().backward()
            gradients.append([leaf.grad.double().cpu() for leaf in leaves])
        for on_cpu, on_gpu in zip(*gradients, strict=True):
            assert (on_cpu - on_gpu).norm() < 2e-2 * on_cpu.norm()


def test_compiled_gradients_equal_the_eager_ones_on_a_gpu():
    for attend in (wl.hstu_attention, wl.softmax_attention):

        def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu: torch.Tensor, attend: Any = attend) -> Any:
            return attend(q, k, v, cu, max_seqlen_q=44, max_seqlen_k=44, deterministic=True).float().square().sum()

        arguments = call()
        gradients = []
        for function in (step, torch.compile(step, fullgraph=True)):
            leaves = [arguments[name].clone().requires_grad_() for name in "qkv"]
            function(*leaves, arguments["cu_seqlens_q"]).backward()
            gradients.append([leaf.grad for leaf in leaves])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_lengths_change_between_replays_of_a_captured_training_step():
    arguments = call()
    leaves = [arguments[name].requires_grad_() for name in "qkv"]
    cu_seqlens = arguments["cu_seqlens_q"]

    def step() -> tuple[torch.Tensor, ...]:
        out = wl.softmax_attention(*leaves, cu_seqlens, max_seqlen_q=64, max_seqlen_k=64, deterministic=True)
        return (out, *torch.autograd.grad(out, leaves, torch.ones_like(out)))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for middle in (20, 5, 64):
        cu_seqlens[1] = middle
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))
