"""Matrix products: on Hopper GPUs by the library's kernel, on the CPU by torch's or NumPy's (docs/gemm.md says why)."""

from __future__ import annotations

import math
import struct
import sys
from typing import Any

from . import _arrays, _attention, _layout, _library
from ._arguments import integer, kind_name, real

__all__ = ["explain_matmul", "matmul"]

# warploom_gemm: head, stream, sizes, a, b, c, out, bias, alpha, beta, scale_a, scale_b.
_GEMM = struct.Struct("=5IiIIQ4q" + "Qqq" * 4 + "Q2d2Q")
_ACTIVATIONS = {None: 0, "silu": 1}
_MULTIPLE_OF_16_BYTES = 8  # 16-bit values
_FLOAT8_E4M3 = 3  # WARPLOOM_FLOAT8_E4M3, taken by products only


def matmul(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    c: Any = None,
    alpha: float = 1.0,
    beta: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
) -> Any:
    """``act(alpha * scale_a * scale_b * a @ b.T + bias) + beta * c``: a product with the transpose of b, as in a linear
    layer whose weight is b, with what often follows it done in the same kernel.

    Args:
        a: (..., M, K), float16, bfloat16 or (torch) float8_e4m3fn, on the CPU float32 too; rows contiguous. On a GPU
            addresses and row strides are multiples of 16 bytes.
        b: (N, K), or (B, N, K) for an ``a`` of (B, M, K); a's dtype.
        bias: (N), a's dtype (for 8-bit a the result's, or bfloat16 where that is float32), added to every row.
        activation: None or "silu", applied after the bias.
        c: like the result, in its dtype; added at the end.
        alpha, beta: scale factors; beta is 1 when c is given.
        out: where the result is written; c itself is allowed. Default: a new array, whose rows are padded to 16 bytes.
        out_dtype: float32, float16 or bfloat16; default: out's, c's or a's, bfloat16 for 8-bit a.
        scale_a, scale_b: of 8-bit a and b: float32 tensors of one value on a's device; it is read there, so scales that
            change need no synchronisation.

    Returns:
        (..., M, N). Sums are float32; the result is rounded once, at the end. It is not differentiable.

    Raises:
        ValueError: a shape, stride or value breaks a rule. TypeError: a dtype is not taken. RuntimeError: the GPU is
        not a Hopper one, or the driver or compiler failed.
    """
    _check_activation(activation)
    alpha = real("alpha", alpha)
    scale = 1.0 if beta is None else real("beta", beta)
    if c is None and beta:
        raise ValueError(f"beta = {beta} without c; pass c too")
    scale = 0.0 if c is None else scale
    if not (math.isfinite(alpha) and math.isfinite(scale)):
        raise ValueError(f"alpha = {alpha}, beta = {scale}; pass finite numbers")
    torch_backend = _attention.torch_if_imported()
    if torch_backend is not None and torch_backend.is_tensor(a):
        _check_kinds("a torch tensor", torch_backend.is_tensor, b, bias, c, out)
        return _on_torch(a, b, bias, activation, c, alpha, scale, out, out_dtype, (scale_a, scale_b))
    if scale_a is not None or scale_b is not None:
        raise TypeError("scale_a and scale_b belong to torch's float8_e4m3fn tensors; use alpha")
    if _arrays.is_numpy(a):
        _check_kinds("a NumPy array", _arrays.is_numpy, b, bias, c, out)
        return _on_numpy(a, b, bias, activation, c, alpha, scale, out, out_dtype)
    raise TypeError(f"a is a {kind_name(a)}; pass torch tensors or NumPy arrays")


def _check_activation(activation: Any) -> None:
    if not isinstance(activation, str | None):
        raise TypeError(f'activation is a {kind_name(activation)}; pass None or "silu"')
    if activation not in _ACTIVATIONS:
        raise ValueError(f'activation = {activation!r} is unknown; pass None or "silu"')


def _check_kinds(kind: str, is_kind: Any, b: Any, bias: Any, c: Any, out: Any) -> None:
    """TypeError unless everything is of a's library; all but b may be None."""
    for name, array in (("b", b), ("bias", bias), ("c", c), ("out", out)):
        if not is_kind(array) and (array is not None or name == "b"):
            raise TypeError(f"{name} is a {kind_name(array)} and a {kind}; pass both of one library")


def _check_shapes(a: Any, b: Any, bias: Any, c: Any, out: Any) -> tuple[int, ...]:
    """The result's shape."""
    if a.ndim < 2 or b.ndim not in (2, 3):
        raise ValueError(f"a is {tuple(a.shape)} and b is {tuple(b.shape)}; pass (..., M, K) and (N, K) or (B, N, K)")
    if b.ndim == 3 and (a.ndim != 3 or a.shape[0] != b.shape[0]):
        raise ValueError(f"b is {tuple(b.shape)}, so a must be ({b.shape[0]}, M, K); it is {tuple(a.shape)}")
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"a has {a.shape[-1]} columns and b {b.shape[-1]}; both are multiplied along their last dimension"
        )
    shape = (*a.shape[:-1], b.shape[-2])
    for name, array, expected in (("bias", bias, (b.shape[-2],)), ("c", c, shape), ("out", out, shape)):
        if array is not None and tuple(array.shape) != expected:
            raise ValueError(f"{name} is {tuple(array.shape)}; here it must be {expected}")
    return shape


def _check_dtypes(
    a: Any, b: Any, bias: Any, c: Any, out: Any, result: Any, of_bias: Any, taken: tuple[Any, ...]
) -> None:
    if a.dtype not in taken:
        raise TypeError(f"a is {a.dtype}; pass {', '.join(map(str, taken))}")
    for name, array, expected in (("b", b, a.dtype), ("bias", bias, of_bias), ("c", c, result), ("out", out, result)):
        if array is not None and array.dtype != expected:
            raise TypeError(f"{name} is {array.dtype}; here it must be {expected}")


def _result_dtype(otherwise: Any, c: Any, out: Any, out_dtype: Any) -> Any:
    if out_dtype is not None:
        return out_dtype
    return next((array.dtype for array in (out, c) if array is not None), otherwise)


def _check_scales(torch: Any, a: Any, scales: tuple[Any, Any]) -> None:
    for name, scale in zip(("scale_a", "scale_b"), scales, strict=True):
        if scale is None:
            continue
        if a.dtype != torch.float8_e4m3fn:
            raise TypeError(f"{name} belongs to float8_e4m3fn tensors, and a is {a.dtype}; use alpha")
        if not torch.is_tensor(scale) or scale.dtype != torch.float32 or scale.numel() != 1:
            raise TypeError(f"{name} is {scale!r}; pass a float32 tensor of one value")
        if scale.device != a.device:
            raise ValueError(f"{name} is on {scale.device} and a on {a.device}; move them to one device")


def _on_torch(
    a: Any,
    b: Any,
    bias: Any,
    activation: str | None,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    out_dtype: Any,
    scales: tuple[Any, Any],
) -> Any:
    torch = sys.modules["torch"]
    shape = _check_shapes(a, b, bias, c, out)
    eight_bits = a.dtype == torch.float8_e4m3fn
    result = _result_dtype(torch.bfloat16 if eight_bits else a.dtype, c, out, out_dtype)
    of_bias = a.dtype if not eight_bits else torch.bfloat16 if result == torch.float32 else result
    all_types = (torch.float16, torch.bfloat16, torch.float32)
    taken = (torch.float8_e4m3fn, *(all_types if a.device.type == "cpu" else all_types[:2]))
    _check_dtypes(a, b, bias, c, out, result, of_bias, taken)
    _check_scales(torch, a, scales)
    if result not in all_types:
        raise TypeError(f"out_dtype is {result}; pass torch.float16, torch.bfloat16 or torch.float32")
    for name, array in (("b", b), ("bias", bias), ("c", c), ("out", out)):
        if array is not None and array.device != a.device:
            raise ValueError(f"{name} is on {array.device} and a on {a.device}; move them to one device")
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (a, b, bias, c)):
        raise RuntimeError("warploom.matmul has no gradient; call it under torch.no_grad(), or use torch.matmul")
    if a.device.type == "cuda":
        return _on_cuda(torch, a, b, bias, activation, c, alpha, beta, out, result, shape, scales)
    if a.device.type != "cpu":
        raise ValueError(f"a is on {a.device}; pass CPU or CUDA tensors")
    value = torch.matmul(a.float(), b.float().mT).mul_(alpha)
    for factor in scales:
        if factor is not None:
            value *= factor.reshape(())
    if bias is not None:
        value += bias.float()
    if activation is not None:
        value = torch.nn.functional.silu(value)
    if c is not None:
        value += beta * c.float()
    return value.to(result) if out is None else out.copy_(value)


def _matrix(name: str, x: Any) -> tuple[int, int, int]:
    """data, batch stride, row stride of a tensor of two or three dimensions."""
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(
            f"{name} has stride {x.stride(-1)} along its last dimension; pass a tensor with contiguous rows"
        )
    return x.data_ptr(), x.stride(0) if x.ndim == 3 else 0, x.stride(-2)


def _folded(x: Any) -> Any:
    """All but the last dimension as one, without a copy; None when they do not lie at one distance."""
    if x is None or x.ndim == 2:
        return x
    try:
        return x.view(*([-1] if x.numel() else [math.prod(x.shape[:-1])]), x.shape[-1])
    except RuntimeError:
        return None


def _matrices(tensors: dict[str, Any]) -> dict[str, Any]:
    """a, b, c and out as matrices, or as batches of them. With one b for all of a, the leading dimensions of a are rows
    wherever they lie at one distance, and a third one is a batch where they do not."""
    if tensors["b"].ndim == 3:
        return tensors
    folded = {name: _folded(x) for name, x in tensors.items()}
    loose = [name for name, x in tensors.items() if x is not None and folded[name] is None]
    if not loose:
        return folded
    if tensors["a"].ndim == 3:
        return tensors
    x = tensors[loose[0]]
    raise ValueError(
        f"{loose[0]} is {tuple(x.shape)} with strides {x.stride()}, which is no matrix of rows at one distance; "
        f"pass {loose[0]}.contiguous()"
    )


def _pack(dtype: int, out_dtype: int, device: int, activation: int, stream: int, sizes: Any, matrices: Any) -> bytes:
    return _GEMM.pack(
        *(_layout.ABI_VERSION, _GEMM.size, dtype, out_dtype, _layout.CUDA, device, activation, 0, stream),
        *sizes,
        *matrices,
    )


def _on_cuda(
    torch: Any,
    a: Any,
    b: Any,
    bias: Any,
    activation: str | None,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    result: Any,
    shape: tuple[int, ...],
    scales: tuple[Any, Any],
) -> Any:
    _library.add_cuda_library_directories()
    columns = shape[-1]
    if out is None:
        padded = -(-columns // _MULTIPLE_OF_16_BYTES) * _MULTIPLE_OF_16_BYTES
        out = torch.empty((*shape[:-1], padded), dtype=result, device=a.device)[..., :columns]
    if bias is not None and columns > 1 and bias.stride(0) != 1:
        raise ValueError(f"bias has stride {bias.stride(0)}; pass a contiguous tensor")
    matrices = _matrices({"a": a, "b": b, "c": c, "out": out})
    batch, rows = (1, *matrices["out"].shape[:-1])[-2:]
    codes = {
        torch.float32: _layout.FLOAT32,
        torch.float16: _layout.FLOAT16,
        torch.bfloat16: _layout.BFLOAT16,
        torch.float8_e4m3fn: _FLOAT8_E4M3,
    }
    packed: list[Any] = []
    for name, x in matrices.items():
        packed += (0, 0, 0) if x is None else _matrix(name, x)
    packed += (0 if bias is None else bias.data_ptr(), alpha, beta)
    packed += (0 if scale is None else scale.data_ptr() for scale in scales)
    index = a.device.index
    call = _pack(
        codes[a.dtype],
        codes[result],
        index,
        _ACTIVATIONS[activation],
        torch.cuda.current_stream(index).cuda_stream,
        (batch, rows, columns, a.shape[-1]),
        packed,
    )
    _library.check(_library.library.warploom_gemm_run(call))
    return out


def _on_numpy(
    a: Any, b: Any, bias: Any, activation: str | None, c: Any, alpha: float, beta: float, out: Any, out_dtype: Any
) -> Any:
    numpy = sys.modules["numpy"]
    _check_shapes(a, b, bias, c, out)
    try:
        result = numpy.dtype(_result_dtype(a.dtype, c, out, out_dtype))
    except TypeError:
        raise TypeError(f"out_dtype is {out_dtype!r}; pass float16 or float32") from None
    taken = (numpy.dtype("float16"), numpy.dtype("float32"))
    _check_dtypes(a, b, bias, c, out, result, a.dtype, taken)
    if result not in taken:
        raise TypeError(f"out_dtype is {result}; pass float16 or float32")
    if out is not None and not out.flags.writeable:
        raise ValueError("out is read-only; pass an array that can be written")
    value = numpy.float32(alpha) * (a.astype(numpy.float32) @ b.astype(numpy.float32).swapaxes(-1, -2))
    if bias is not None:
        value += bias.astype(numpy.float32)
    if activation is not None:
        with numpy.errstate(over="ignore"):
            value = value / (1 + numpy.exp(-value))
    if c is not None:
        value += numpy.float32(beta) * c.astype(numpy.float32)
    if out is None:
        return value.astype(result)
    out[...] = value
    return out


def explain_matmul(
    rows: int,
    columns: int,
    depth: int,
    *,
    batch: int = 1,
    dtype: str = "bfloat16",
    out_dtype: str | None = None,
    bias: bool = False,
    activation: str | None = None,
    c: bool = False,
) -> dict[str, Any]:
    """Which tile ``matmul`` of contiguous (rows, depth) and (columns, depth) takes on this machine's first GPU, or on
    an H200, and every candidate with its predicted cycles.

    Raises:
        ValueError: a size or a name is not taken. TypeError: a kind or a dtype.
    """
    codes = {"float32": _layout.FLOAT32, "float16": _layout.FLOAT16, "bfloat16": _layout.BFLOAT16}
    operands = {**codes, "float8_e4m3": _FLOAT8_E4M3}
    if out_dtype is None:
        out_dtype = "bfloat16" if dtype == "float8_e4m3" else dtype
    if dtype not in operands or out_dtype not in codes:
        raise ValueError(
            f'dtype = "{dtype}", out_dtype = "{out_dtype}": pass "float16", "bfloat16", for a and b also '
            '"float8_e4m3", for the result also "float32"'
        )
    _check_activation(activation)
    sizes = {"batch": batch, "rows": rows, "columns": columns, "depth": depth}
    for name, size in sizes.items():
        if not 0 <= integer(name, size) < 2**31:
            raise ValueError(f"{name} = {size} is not 0 to 2147483647")
    nowhere = 4096  # an aligned address that is never read

    def pitch(size: int) -> int:
        return -(-size // 16) * 16  # 16 bytes of any type

    matrices: list[Any] = [nowhere, rows * pitch(depth), pitch(depth), nowhere, columns * pitch(depth), pitch(depth)]
    result = (nowhere, rows * pitch(columns), pitch(columns))
    matrices += (*(result if c else (0, 0, 0)), *result, nowhere if bias else 0, 1.0, float(c), 0, 0)
    call = _pack(
        operands[dtype], codes[out_dtype], 0, _ACTIVATIONS[activation], 0, (batch, rows, columns, depth), matrices
    )
    found: dict[str, Any] = _library.json_text("warploom_gemm_explain", call)
    return found
