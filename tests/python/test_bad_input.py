"""Everything that must be refused: the right exception, and a message that names the argument."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import warploom as wl


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def arguments(**changes: Any) -> dict[str, Any]:
    """A legal call of two sequences of 3 and 4 rows, 2 heads, D 8, Dv 16, with changes."""
    torch.manual_seed(0)
    call: dict[str, Any] = {
        "q": torch.randn(7, 2, 8),
        "k": torch.randn(7, 2, 8),
        "v": torch.randn(7, 2, 16),
        "cu_seqlens_q": i32(0, 3, 7),
    }
    call.update(changes)
    return call


def dense(**changes: Any) -> dict[str, Any]:
    call: dict[str, Any] = {name: torch.randn(2, 4, 2, 8) for name in "qkv"}
    call.update(changes)
    return call


def mask(**fields: Any) -> dict[str, Any]:
    return arguments(mask=wl.Mask(**{"right": 0, **fields}))


def bucketed(**fields: Any) -> dict[str, Any]:
    return arguments(bias=wl.BucketedBias(**fields))


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
        return torch.nested.nested_tensor([torch.zeros(3, 2, 8), torch.zeros(4, 2, 8)], layout=layout)


times = torch.arange(7)
table = torch.zeros(2, 4)

# (name in the message, exception, call)
BOTH = [
    # kinds
    ("q", TypeError, arguments(q=[[[1.0]]])),
    ("q", TypeError, arguments(q=None)),
    ("k", TypeError, arguments(k="k")),
    ("cu_seqlens_q", TypeError, arguments(cu_seqlens_q=[0, 3, 7])),
    ("mask", TypeError, arguments(mask="causal")),
    ("mask", TypeError, arguments(mask=None)),
    ("bias", TypeError, arguments(bias=1.0)),
    ("alpha", TypeError, arguments(alpha="1")),
    ("max_seqlen_q", TypeError, arguments(max_seqlen_q=4.0)),
    ("deterministic", TypeError, arguments(deterministic=2)),
    ("left", TypeError, mask(left=1.5)),
    ("right", TypeError, mask(right="0")),
    ("target_group_size", TypeError, mask(target_group_size=None)),
    ("num_targets", TypeError, mask(num_targets=1.0)),
    ("rows", TypeError, arguments(bias=wl.DenseBias(torch.zeros(1, 1, 4, 4), rows=1))),
    ("rows", TypeError, arguments(bias=wl.PackedBias(torch.zeros(1, 28), rows=None))),
    ("intervals", TypeError, arguments(mask=wl.IntervalMask(None))),
    # dtypes
    ("q", TypeError, arguments(q=torch.zeros(7, 2, 8, dtype=torch.float64))),
    ("q", TypeError, arguments(q=torch.zeros(7, 2, 8, dtype=torch.int32))),
    ("k", TypeError, arguments(k=torch.zeros(7, 2, 8, dtype=torch.bfloat16))),
    ("v", TypeError, arguments(v=torch.zeros(7, 2, 16, dtype=torch.float16))),
    ("cu_seqlens_q", TypeError, arguments(cu_seqlens_q=torch.tensor([0.0, 3.0, 7.0]))),
    ("cu_seqlens_k", TypeError, arguments(cu_seqlens_k=torch.tensor([0, 3, 7], dtype=torch.int16))),
    ("seqused_q", TypeError, arguments(seqused_q=torch.tensor([1.0, 1.0]))),
    ("seqused_k", TypeError, arguments(seqused_k=torch.tensor([True, True]))),
    ("num_contexts", TypeError, mask(num_contexts=torch.tensor([1.0, 1.0]))),
    ("num_targets", TypeError, mask(num_targets=torch.tensor([1.0, 1.0]).half())),
    ("intervals", TypeError, arguments(mask=wl.IntervalMask(torch.zeros(1, 7, 1, 2)))),
    ("bias", TypeError, arguments(bias=torch.zeros(1, 1, 4, 4, dtype=torch.float64))),
    ("bias", TypeError, arguments(bias=torch.zeros(1, 1, 4, 4, dtype=torch.bfloat16))),
    ("position", TypeError, bucketed(position=table.half())),
    ("time", TypeError, bucketed(time=table.double(), timestamps=times)),
    ("timestamps", TypeError, bucketed(time=table, timestamps=times.int())),
    ("time_bucket", TypeError, bucketed(time=table, timestamps=times, time_bucket=torch.ones(3))),
    # ranks and shapes
    ("q", ValueError, arguments(q=torch.zeros(7, 16))),
    ("k", ValueError, arguments(k=torch.zeros(1, 7, 2, 8))),
    ("v", ValueError, arguments(v=torch.zeros(7, 16))),
    ("k", ValueError, arguments(k=torch.zeros(7, 2, 16))),
    ("v", ValueError, arguments(v=torch.zeros(7, 1, 16))),
    ("v", ValueError, arguments(v=torch.zeros(6, 2, 16))),
    ("k", ValueError, arguments(k=torch.zeros(6, 2, 8), v=torch.zeros(6, 2, 16))),
    ("heads", ValueError, arguments(k=torch.zeros(7, 3, 8), v=torch.zeros(7, 3, 16))),
    ("k", ValueError, dense(k=torch.zeros(3, 4, 2, 8), v=torch.zeros(3, 4, 2, 8))),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=None)),
    ("cu_seqlens_q", ValueError, dense(cu_seqlens_q=i32(0, 4, 8))),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=i32())),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=torch.zeros(1, 3, dtype=torch.int32))),
    ("cu_seqlens_k", ValueError, arguments(cu_seqlens_k=i32(0, 7))),
    ("head dimension", ValueError, arguments(q=torch.zeros(7, 2, 520), k=torch.zeros(7, 2, 520))),
    ("head dimension", ValueError, arguments(v=torch.zeros(7, 2, 1024))),
    ("head dimension", ValueError, arguments(v=torch.zeros(7, 2, 0))),
    ("seqused_q", ValueError, arguments(seqused_q=i32(1))),
    ("seqused_k", ValueError, arguments(seqused_k=i32(1, 1, 1))),
    ("num_targets", ValueError, mask(num_targets=i32(1))),
    ("intervals", ValueError, arguments(mask=wl.IntervalMask(torch.zeros(1, 7, 2, dtype=torch.int32)))),
    ("intervals", ValueError, arguments(mask=wl.IntervalMask(torch.zeros(1, 6, 1, 2, dtype=torch.int32)))),
    ("intervals", ValueError, arguments(mask=wl.IntervalMask(torch.zeros(3, 7, 1, 2, dtype=torch.int32)))),
    ("bias", ValueError, arguments(bias=torch.zeros(4, 4))),
    ("bias", ValueError, arguments(bias=torch.zeros(1, 3, 4, 4))),
    ("bias", ValueError, arguments(bias=torch.zeros(3, 1, 4, 4))),
    ("bias", ValueError, arguments(bias=torch.zeros(1, 1, 5, 4))),
    ("bias", ValueError, arguments(bias=torch.zeros(1, 1, 4, 5))),
    ("rows", ValueError, arguments(bias=wl.DenseBias(torch.zeros(1, 1, 4, 4), rows="i"))),
    ("bias", ValueError, arguments(bias=wl.PackedBias(torch.zeros(1, 27)))),
    ("bias", ValueError, arguments(bias=wl.PackedBias(torch.zeros(28)))),
    ("bias", ValueError, arguments(bias=wl.PackedBias(torch.zeros(3, 28)))),
    ("position", ValueError, bucketed()),
    ("position", ValueError, bucketed(position=torch.zeros(4))),
    ("position", ValueError, bucketed(position=torch.zeros(3, 4))),
    ("position", ValueError, bucketed(position=torch.zeros(2, 0))),
    ("time", ValueError, bucketed(time=torch.zeros(3, 4), timestamps=times)),
    ("timestamps", ValueError, bucketed(time=table)),
    ("timestamps", ValueError, bucketed(time=table, timestamps=times[:6])),
    ("timestamps", ValueError, bucketed(position=table, timestamps=times)),
    ("time_bucket", ValueError, bucketed(time=table, timestamps=times, time_bucket=torch.arange(4))),
    ("time_bucket", ValueError, bucketed(time=table, timestamps=times, time_bucket=torch.tensor([3, 2, 5]))),
    # strides of the last dimension
    ("q", ValueError, arguments(q=torch.zeros(7, 2, 16)[..., ::2])),
    ("k", ValueError, arguments(k=torch.zeros(7, 8, 2).transpose(1, 2))),
    ("v", ValueError, arguments(v=torch.zeros(1, 2, 1).expand(7, 2, 16))),
    ("bias", ValueError, arguments(bias=torch.zeros(1, 1, 4, 8)[..., ::2])),
    ("position", ValueError, bucketed(position=torch.zeros(2, 8)[:, ::2])),
    # values
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=i32(1, 3, 7))),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=i32(0, 5, 4))),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=i32(0, 3, 8))),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=torch.tensor([0, 3, 2**40]))),
    ("cu_seqlens_k", ValueError, arguments(cu_seqlens_k=i32(0, 3, 8))),
    ("max_seqlen_q", ValueError, arguments(max_seqlen_q=3)),
    ("max_seqlen_k", ValueError, arguments(max_seqlen_k=3)),
    ("max_seqlen_q", ValueError, arguments(max_seqlen_q=-1)),
    ("max_seqlen_k", ValueError, dense(max_seqlen_k=3)),
    ("seqused_q", ValueError, arguments(seqused_q=i32(4, 4))),
    ("seqused_k", ValueError, arguments(seqused_k=i32(3, 5))),
    ("seqused_q", ValueError, arguments(seqused_q=i32(-1, 4))),
    ("seqused_k", ValueError, arguments(seqused_k=-1)),
    ("seqused_k", ValueError, arguments(seqused_k=4)),
    ("left", ValueError, mask(left=-1)),
    ("right", ValueError, mask(right=-1)),
    ("num_targets[0]", ValueError, mask(num_targets=i32(4, 0))),
    ("num_targets[1]", ValueError, mask(num_targets=i32(0, -1))),
    ("num_contexts[0]", ValueError, mask(num_contexts=i32(2, 0), num_targets=i32(2, 0))),
    ("num_contexts[1]", ValueError, mask(num_contexts=i32(0, -3))),
    ("num_targets", ValueError, mask(num_targets=torch.tensor([0, 2**40]))),
    ("num_targets", ValueError, mask(num_targets=torch.tensor([0, -(2**40)]))),
    ("num_contexts", ValueError, mask(num_contexts=4)),
    ("num_contexts", ValueError, mask(num_contexts=-4)),
    ("num_targets", ValueError, mask(num_targets=2**31)),
    ("right", ValueError, mask(right=None, num_targets=0)),
    ("right", ValueError, mask(right=2, num_contexts=i32(0, 0))),
    ("target_group_size", ValueError, mask(target_group_size=0)),
    ("alpha", ValueError, arguments(alpha=float("nan"))),
]

# What only torch has: tensors without strides.
LAYOUTS = [
    ("q is a nested tensor", TypeError, arguments(q=nested(torch.strided))),
    ("k is a nested tensor", TypeError, arguments(k=nested(torch.jagged))),
    ("q has layout torch.sparse_coo", TypeError, arguments(q=torch.ones(7, 2, 8).to_sparse())),
    ("q has layout", TypeError, arguments(q=torch.ones(7, 2, 1).to_sparse(), k=torch.ones(7, 2, 1))),
    ("k has layout torch.sparse_coo", TypeError, arguments(k=torch.ones(7, 2, 8).to_sparse())),
    ("v has layout", TypeError, arguments(v=torch.ones(7, 2, 16).to_sparse(1))),
    ("cu_seqlens_q has layout", TypeError, arguments(cu_seqlens_q=i32(0, 3, 7).to_sparse())),
    ("bias has layout", TypeError, arguments(bias=torch.ones(1, 1, 4, 4).to_sparse())),
    ("position has layout", TypeError, bucketed(position=torch.ones(2, 4).to_sparse())),
]

HSTU = [
    ("divisor", ValueError, arguments(divisor=0)),
    ("divisor", ValueError, arguments(divisor=0.0)),
    ("divisor", ValueError, arguments(divisor=float("nan"))),
    ("divisor", TypeError, arguments(divisor="7")),
    ("divisor", TypeError, arguments(divisor=torch.ones(7, dtype=torch.float64))),
    ("divisor", ValueError, arguments(divisor=torch.ones(6))),
    ("bias_scaled_by_alpha", TypeError, arguments(bias_scaled_by_alpha=1)),
    ("cu_seqlens_q", ValueError, arguments(cu_seqlens_q=i32(0, 4, 7), cu_seqlens_k=i32(0, 3, 7))),
    ("q", ValueError, dense(q=torch.zeros(2, 5, 2, 8))),
]

SOFTMAX = [
    ("softcap", ValueError, arguments(softcap=-1.0)),
    ("softcap", ValueError, arguments(softcap=float("nan"))),
    ("softcap", TypeError, arguments(softcap="1")),
    ("return_lse", TypeError, arguments(return_lse=1)),
    (
        "time",
        ValueError,
        arguments(
            cu_seqlens_q=i32(0, 4, 7),
            cu_seqlens_k=i32(0, 3, 7),
            bias=wl.BucketedBias(time=table, timestamps=times),
        ),
    ),
]

OPERATORS = {"hstu": wl.hstu_attention, "softmax": wl.softmax_attention}
CASES = [(op, *case) for op in OPERATORS for case in BOTH]
CASES += [("hstu", *case) for case in HSTU] + [("softmax", *case) for case in SOFTMAX]


def refused(op: str, name: str, error: type[Exception], call: dict[str, Any]) -> None:
    with pytest.raises(error) as raised:
        OPERATORS[op](**call)
    assert name in str(raised.value).replace("'", "")
    assert len(str(raised.value)) > len(name) + 10, "the message says no rule"


@pytest.mark.parametrize(("op", "name", "error", "call"), CASES)
def test_torch_call_is_refused(op, name, error, call):
    refused(op, name, error, call)


@pytest.mark.parametrize("op", list(OPERATORS))
@pytest.mark.parametrize(("name", "error", "call"), LAYOUTS)
def test_tensor_without_strides_is_refused(op, name, error, call):
    refused(op, name, error, call)


def test_divisor_without_strides_is_refused():
    refused("hstu", "divisor has layout", TypeError, arguments(divisor=torch.ones(7).to_sparse()))


def to_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if value.dtype == torch.bfloat16 else value.numpy()
    if isinstance(value, wl.Mask):
        fields = {**vars(value)}
        return wl.Mask(**{name: to_numpy(field) for name, field in fields.items()})
    if isinstance(value, (wl.IntervalMask, wl.DenseBias, wl.PackedBias, wl.BucketedBias)):
        return type(value)(**{name: to_numpy(field) for name, field in vars(value).items()})
    return value


@pytest.mark.parametrize(("op", "name", "error", "call"), CASES)
def test_numpy_call_is_refused(op, name, error, call):
    tensors = [value for value in call.values() if isinstance(value, torch.Tensor)]
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        pytest.skip("NumPy alone has no bfloat16")
    refused(op, name, error, {key: to_numpy(value) for key, value in call.items()})


@pytest.mark.parametrize("op", list(OPERATORS))
def test_unknown_keyword_is_refused(op):
    with pytest.raises(TypeError, match="softness"):
        OPERATORS[op](**arguments(), softness=1)


@pytest.mark.parametrize("op", list(OPERATORS))
@pytest.mark.parametrize("name", ["k", "v", "cu_seqlens_q"])
def test_mixed_devices_are_refused(op, name):
    call = arguments()
    call[name] = call[name].to("meta")
    with pytest.raises(RuntimeError, match=f"{name}.*meta"):
        OPERATORS[op](**call)


def test_other_devices_than_cpu_and_cuda_are_refused():
    class Elsewhere:
        """An array that says it is on a device of another maker."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return (10, 0)

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("not readable from here")

    with pytest.raises(TypeError, match=r"q .*DLPack"):
        wl.hstu_attention(**arguments(q=Elsewhere()))


@pytest.mark.parametrize(
    ("name", "error", "changes"),
    [
        ("dout", TypeError, {"dout": torch.zeros(7, 2, 16, dtype=torch.float64)}),
        ("dout", ValueError, {"dout": torch.zeros(7, 2, 8)}),
        ("dout", TypeError, {"dout": None}),
        ("dout has layout", TypeError, {"dout": torch.ones(7, 2, 16).to_sparse()}),
        ("out", ValueError, {"out": torch.zeros(7, 2, 8)}),
        ("out", TypeError, {"out": torch.zeros(7, 2, 16).half()}),
        ("lse", ValueError, {"lse": torch.zeros(7, 2)}),
        ("lse", TypeError, {"lse": torch.zeros(2, 7, dtype=torch.float64)}),
        ("lse", TypeError, {"lse": None}),
        ("lse has layout", TypeError, {"lse": torch.ones(2, 7).to_sparse()}),
    ],
)
def test_backward_is_refused(name, error, changes):
    softmax = {"dout": torch.zeros(7, 2, 16), "out": torch.zeros(7, 2, 16), "lse": torch.zeros(2, 7), **changes}
    with pytest.raises(error, match=name):
        wl.softmax_attention_backward(**arguments(**softmax))
    if name.startswith("dout"):
        with pytest.raises(error, match=name):
            wl.hstu_attention_backward(**arguments(**changes))


def test_refused_call_writes_nothing():
    """An error found in the arguments is found before anything is written."""
    call = arguments(cu_seqlens_q=i32(0, 3, 8))
    before = {name: value.clone() for name, value in call.items()}
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        wl.hstu_attention(**call)
    assert all(torch.equal(call[name], value) for name, value in before.items())


def test_numpy_array_of_another_byte_order_is_refused():
    with pytest.raises(TypeError, match="q"):
        wl.hstu_attention(**{**{n: to_numpy(x) for n, x in arguments().items()}, "q": np.zeros((7, 2, 8), ">f4")})
