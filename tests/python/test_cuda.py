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
