"""warploom.matmul on the CPU against float64, its errors, and its C structure against the header."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warploom as wl
from warploom import _matmul

HEADER = Path(__file__).resolve().parent.parent.parent / "include" / "warploom" / "warploom.h"
BYTES = {"uint32_t": 4, "int32_t": 4, "int64_t": 8, "double": 8, "void*": 8, "float*": 8, "warploom_matrix": 24}


def reference(a: Any, b: Any, bias: Any, silu: bool, c: Any, alpha: float, beta: float) -> Any:
    value = alpha * (a.double() @ b.double().transpose(-1, -2))
    if bias is not None:
        value = value + bias.double()
    if silu:
        value = value / (1 + torch.exp(-value))
    return value if c is None else value + beta * c.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [((7, 12), (5, 12)), ((3, 7, 12), (5, 12)), ((3, 7, 12), (3, 5, 12)), ((4, 0), (3, 0))]
)
@pytest.mark.parametrize("fused", [False, True])
def test_torch_on_the_cpu(dtype: torch.dtype, shape: Any, fused: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator).to(dtype) for size in shape)
    out_shape = (*shape[0][:-1], shape[1][-2])
    extras: dict[str, Any] = {}
    if fused:
        bias = torch.randn(out_shape[-1], generator=generator).to(dtype)
        c = torch.randn(out_shape, generator=generator).to(dtype)
        extras = {"bias": bias, "activation": "silu", "c": c, "alpha": 0.5, "beta": -1.5}
    found = wl.matmul(a, b, **extras)
    assert found.dtype == dtype
    assert found.shape == out_shape
    expected = reference(
        a, b, extras.get("bias"), fused, extras.get("c"), extras.get("alpha", 1.0), extras.get("beta", 0.0)
    )
    # One rounding, and a float32 sum of a dozen terms.
    unit = {torch.float32: 2.0**-20, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert ((found.double() - expected).abs() <= unit * expected.abs() + 1e-5).all()


def test_numpy_is_served_by_numpy() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((6, 9)).astype(np.float32), random.standard_normal((4, 9)).astype(np.float32)
    c = random.standard_normal((6, 4)).astype(np.float32)
    found = wl.matmul(a, b, activation="silu", c=c, beta=2.0)
    z = a.astype(np.float64) @ b.T
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, z / (1 + np.exp(-z)) + 2 * c, rtol=1e-5, atol=1e-5)
    out = np.empty((6, 4), np.float32)
    assert wl.matmul(a, b, out=out) is out
    np.testing.assert_allclose(out, z, rtol=1e-5, atol=1e-5)


def test_out_may_be_c() -> None:
    a, b, c = torch.randn(4, 8), torch.randn(3, 8), torch.randn(4, 3)
    expected = a.double() @ b.double().T + 0.5 * c.double()
    assert wl.matmul(a, b, c=c, beta=0.5, out=c) is c
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-5)


def test_results_may_be_wider() -> None:
    a, b = torch.randn(4, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    found = wl.matmul(a, b, out_dtype=torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), a.double() @ b.double().T, rtol=1e-6, atol=1e-6)


def test_eight_bits_have_scales() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, generator=generator).to(torch.float8_e4m3fn) for size in ((7, 32), (5, 32)))
    bias = torch.randn(5, generator=generator).bfloat16()
    scale_a, scale_b = torch.tensor(0.5), torch.tensor([3.0])
    found = wl.matmul(a, b, bias=bias, activation="silu", scale_a=scale_a, scale_b=scale_b)
    assert found.dtype == torch.bfloat16
    expected = reference(a, b, bias, True, None, 1.5, 0.0)
    assert ((found.double() - expected).abs() <= 2.0**-8 * expected.abs() + 1e-5).all()
    assert wl.matmul(a, b, out_dtype=torch.float32, bias=bias).dtype == torch.float32


ROWS, COLUMNS = torch.zeros(4, 8), torch.zeros(3, 8)
READ_ONLY = np.zeros((4, 3), np.float32)
READ_ONLY.flags.writeable = False
EIGHT = torch.zeros(4, 16).to(torch.float8_e4m3fn)
BAD: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((ROWS, torch.zeros(3, 9)), {}, ValueError, "a has 8 columns and b 9"),
    ((ROWS, torch.zeros(8)), {}, ValueError, "b is"),
    ((ROWS, torch.zeros(2, 3, 8)), {}, ValueError, "a must be (2, M, K)"),
    ((ROWS, COLUMNS.half()), {}, TypeError, "b is torch.float16"),
    ((ROWS.double(), COLUMNS.double()), {}, TypeError, "a is torch.float64"),
    ((ROWS, COLUMNS), {"bias": torch.zeros(4)}, ValueError, "bias is (4,)"),
    ((ROWS, COLUMNS), {"c": torch.zeros(3, 4)}, ValueError, "c is (3, 4)"),
    ((ROWS, COLUMNS), {"out": torch.zeros(4, 3).half(), "out_dtype": torch.float32}, TypeError, "out is torch.float16"),
    ((ROWS, COLUMNS), {"activation": "relu"}, ValueError, "relu"),
    ((ROWS, COLUMNS), {"beta": 1.0}, ValueError, "without c"),
    ((ROWS, COLUMNS), {"alpha": float("nan")}, ValueError, "finite"),
    ((ROWS, COLUMNS), {"out_dtype": torch.int32}, TypeError, "out_dtype is torch.int32"),
    ((ROWS.clone().requires_grad_(), COLUMNS), {}, RuntimeError, "no gradient"),
    (([[1.0]], COLUMNS), {}, TypeError, "a is a list"),
    ((ROWS, COLUMNS), {"scale_a": torch.ones(())}, TypeError, "scale_a belongs to float8_e4m3fn"),
    ((ROWS.numpy(), COLUMNS.numpy()), {"scale_b": 1.0}, TypeError, "scale_a and scale_b belong to"),
    ((EIGHT, EIGHT), {"scale_b": torch.ones(2)}, TypeError, "float32 tensor of one value"),
    ((EIGHT, EIGHT), {"scale_b": 2.0}, TypeError, "scale_b is 2.0"),
    ((EIGHT, EIGHT), {"bias": torch.zeros(4)}, TypeError, "bias is torch.float32; here it must be torch.bfloat16"),
    ((EIGHT, EIGHT), {"out_dtype": torch.float8_e4m3fn}, TypeError, "out_dtype is torch.float8_e4m3fn"),
    ((ROWS, None), {}, TypeError, "b is a NoneType and a a torch tensor"),
    ((ROWS, COLUMNS.numpy()), {}, TypeError, "b is a numpy.ndarray and a a torch tensor"),
    ((ROWS.numpy(), COLUMNS), {}, TypeError, "b is a torch.Tensor and a a NumPy array"),
    ((ROWS, COLUMNS), {"bias": [0.0, 0.0, 0.0]}, TypeError, "bias is a list"),
    ((ROWS, COLUMNS), {"alpha": "2"}, TypeError, "alpha is a str; pass a number"),
    ((ROWS, COLUMNS), {"alpha": None}, TypeError, "alpha is a NoneType"),
    ((ROWS, COLUMNS), {"c": torch.zeros(4, 3), "beta": "2"}, TypeError, "beta is a str"),
    ((ROWS, COLUMNS), {"activation": ["silu"]}, TypeError, "activation is a list"),
    ((ROWS.numpy(), COLUMNS.numpy()), {"out_dtype": "wide"}, TypeError, "out_dtype is 'wide'"),
    ((ROWS.numpy(), COLUMNS.numpy()), {"out": READ_ONLY}, ValueError, "out is read-only"),
]


@pytest.mark.parametrize(("arguments", "keywords", "error", "text"), BAD, ids=[case[3] for case in BAD])
def test_bad_arguments(arguments: Any, keywords: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        wl.matmul(*arguments, **keywords)


def test_structure_is_the_headers() -> None:
    text = HEADER.read_text()
    body = re.search(r"typedef struct warploom_gemm \{(.*?)\} warploom_gemm;", text, re.S)
    assert body
    fields = []
    for line in re.sub(r"/\*.*?\*/", "", body[1], flags=re.S).split(";"):
        declaration = re.match(r"\s*(?:const )?(\w+\*?) (.*)", line.strip(), re.S)
        if declaration:
            fields += [(name.strip(), BYTES[declaration[1]]) for name in declaration[2].split(",")]
    assert [name for name, _ in fields] == [
        *("abi_version", "struct_bytes", "dtype", "out_dtype", "device", "device_index", "activation", "num_threads"),
        *("stream", "batch", "rows", "columns", "depth", "a", "b", "c", "out", "bias", "alpha", "beta"),
        *("scale_a", "scale_b"),
    ]
    assert sum(size for _, size in fields) == _matmul._GEMM.size


def test_explain_names_every_candidate() -> None:
    plan = wl.explain_matmul(8192, 8192, 8192)
    assert plan["config"]["tile_rows"] * plan["config"]["tile_columns"] == 128 * 256
    cycles = [row["cycles"] for row in plan["candidates"]]
    assert cycles == sorted(cycles)
    fused = wl.explain_matmul(65536, 2048, 512, bias=True, activation="silu", c=True)
    assert fused["config"]["order"] == "ping-pong"
    assert fused["config"]["residual"]
    eight = wl.explain_matmul(8192, 8192, 8192, dtype="float8_e4m3")
    assert "fp8 to bfloat16" in eight["candidates"][0]["kernel"]
    with pytest.raises(ValueError, match="dtype"):
        wl.explain_matmul(1, 1, 1, dtype="int8")
    with pytest.raises(ValueError, match="rows = -1"):
        wl.explain_matmul(-1, 1, 1)
    with pytest.raises(ValueError, match=f"depth = {2**70}"):
        wl.explain_matmul(1, 1, 2**70)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError, match="batch is a"):
            wl.explain_matmul(1, 1, 1, batch=wrong)  # type: ignore[arg-type]
