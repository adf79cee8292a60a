"""The two operators and their backward passes."""

from __future__ import annotations

import sys
from typing import Any

from . import _arrays
from ._arguments import flag, flatten, hstu_extras, kind_name, softmax_extras
from ._call import Gradients
from ._functions import MaskFunction, ScoreFunction
from ._masks import IntervalMask, Mask

__all__ = ["hstu_attention", "hstu_attention_backward", "softmax_attention", "softmax_attention_backward"]

_CAUSAL = Mask.causal()
_FULL = Mask.full()

# The torch back end, once torch is there: torch is never imported for a caller who does not use it.
_torch: Any = None


def _load_torch() -> Any:
    global _torch
    from . import _torch as loaded

    _torch = loaded
    return loaded


if "torch" in sys.modules:
    _load_torch()


def torch_if_imported() -> Any:
    """The torch back end when the program has imported torch, else None."""
    if _torch is None and "torch" in sys.modules:
        return _load_torch()
    return _torch


def _torch_if_installed() -> Any:
    try:
        return _torch if _torch is not None else _load_torch()
    except ImportError:
        return None


def _same(result: Any) -> Any:
    return result


def _route(q: Any) -> tuple[Any, Any]:
    """The back end that serves q's kind, and what turns its results into q's library."""
    torch_backend = torch_if_imported()
    if torch_backend is not None and torch_backend.is_tensor(q):
        return torch_backend, _same
    if _arrays.is_numpy(q):
        return _arrays, _same
    if hasattr(q, "__dlpack__"):
        namespace = getattr(q, "__array_namespace__", None)
        from_dlpack = None if namespace is None else getattr(namespace(), "from_dlpack", None)
        convert = _same if from_dlpack is None else from_dlpack
        if from_dlpack is not None and _arrays.is_on_host(q):
            return _arrays, convert
        # Without torch: host arrays all the same; an array on a GPU gets a message that says so.
        return _torch_if_installed() or _arrays, convert
    if hasattr(q, "__array_interface__"):
        return _arrays, _same
    if hasattr(q, "__cuda_array_interface__"):
        torch_backend = _torch_if_installed()
        if torch_backend is None:
            raise RuntimeError(
                f"q ({kind_name(q)}) is on a GPU; arrays on a GPU are served through torch, install torch"
            )
        return torch_backend, _same
    raise TypeError(f"q is a {kind_name(q)}; {_arrays.ARRAY_KINDS}")


def hstu_attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    mask: Mask | IntervalMask | MaskFunction = _CAUSAL,
    bias: Any = None,
    alpha: float | None = None,
    divisor: Any = None,
    bias_scaled_by_alpha: bool = True,
    score: ScoreFunction | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    deterministic: bool = False,
    check_inputs: bool = False,
) -> Any:
    """HSTU attention: ``out = silu(alpha * (q k^T + R)) v / divisor`` over each row's visible columns, without softmax.

    Arguments:
        q: (Tq, H, D) with cu_seqlens_q, or a dense batch (B, Lq, H, D) without. float16 or bfloat16; on the CPU float32
            too. The last dimension is contiguous, every other stride is free.
        k: (Tk, Hkv, D) or (B, Lk, Hkv, D); Hkv divides H, query head n reads key head n // (H / Hkv).
        v: (Tk, Hkv, Dv) or (B, Lk, Hkv, Dv). D and Dv: every multiple of 8 up to 256 anywhere, 1 to 512 on the CPU.
        cu_seqlens_q: int32 or int64 (B + 1), on q's device: sequence b owns rows cu[b] .. cu[b + 1]; starts with 0.
            Rows after the last entry belong to nobody and are 0 in out.
        cu_seqlens_k: likewise for k and v; None is cu_seqlens_q. Every sequence has Lq <= Lk; query rows are its last
            ones.
        mask: `Mask`, `IntervalMask` or `MaskFunction`.
        bias: None, a 4-D tensor (`DenseBias`), `DenseBias`, `PackedBias` or `BucketedBias`.
        alpha: a number; None is 1/sqrt(D).
        divisor: a number other than 0, a float32 tensor (Tq) (dense: B * Lq), or None: max_seqlen_q as given, else the
            longest slot of cu_seqlens_q. Pass it to make a sequence's result independent of its batch.
        bias_scaled_by_alpha: False computes ``silu(alpha * q k^T + R)`` instead.
        score: a `ScoreFunction` that takes silu's place; None is silu.
        max_seqlen_q, max_seqlen_k: the longest sequence's rows, or more. None reads cu_seqlens, which for GPU tensors
            is a synchronisation of the host with the device. Too small: ValueError on the CPU, on a GPU never an
            out-of-bounds access. For a dense batch the shape says it; another value is a ValueError.
        seqused_q, seqused_k: int32 (B) (int64 is converted), or an int for every sequence with at least one row: the
            valid rows at the start of each slot.
        deterministic: gradients bitwise repeatable. The result of the forward pass always is.
        check_inputs: on a GPU, check the values of lengths and counts too (synchronises). The CPU always does.

    Returns:
        out: like q with last dimension Dv, of q's library, dtype and device. torch: differentiable in q, k, v and every
            bias
        tensor that requires a gradient, once (double backward raises RuntimeError). Inside torch.autocast q, k and v
        are cast to its dtype, as scaled_dot_product_attention does; a float32 bias stays float32.

    Raises:
        ValueError: a value, shape or stride breaks a rule. TypeError: a dtype or kind. RuntimeError: device, driver,
            compiler,
        mixed devices. Each names the argument.

    Source: Zhai et al., "Actions Speak Louder than Words" (HSTU), section 3; docs/attention.md, section 2.
    """
    flat = flatten(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alpha, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k),
        *(deterministic, check_inputs),
    ) + hstu_extras(divisor, bias_scaled_by_alpha, score)
    backend = torch_if_imported()
    if backend is not None:
        if backend.is_compiling():
            return backend.traced_hstu(flat)
        if backend.is_tensor(q):
            return backend.hstu(flat)
    backend, convert = _route(q)
    return convert(backend.hstu(flat))


def hstu_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    mask: Mask | IntervalMask | MaskFunction = _CAUSAL,
    bias: Any = None,
    alpha: float | None = None,
    divisor: Any = None,
    bias_scaled_by_alpha: bool = True,
    score: ScoreFunction | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    deterministic: bool = False,
    check_inputs: bool = False,
) -> Gradients:
    """The gradients of `hstu_attention`, without autograd.

    Arguments:
        dout: the gradient of out, out's shape and dtype, any strides.
        the others: as in the forward call. Nothing else of it is needed.

    Returns:
        Gradients(dq, dk, dv, dbias), of q's library: shaped and typed like q, k, v and the bias. dbias is None without
        a bias and a pair (position, time) for a `BucketedBias`, None for an absent table.

    Raises:
        As `hstu_attention`.
    """
    flat = flatten(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alpha, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k),
        *(deterministic, check_inputs),
    ) + hstu_extras(divisor, bias_scaled_by_alpha, score)
    backend, convert = _route(q)
    return _converted(backend.hstu_backward(dout, flat), convert)


def softmax_attention(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    mask: Mask | IntervalMask | MaskFunction = _FULL,
    bias: Any = None,
    alpha: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    deterministic: bool = False,
    check_inputs: bool = False,
) -> Any:
    """Softmax attention: ``out = softmax(alpha * q k^T + R) v`` over each row's visible columns.

    Arguments:
        q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alpha, max_seqlen_*, seqused_*, deterministic, check_inputs: as
            in `hstu_attention`, but the default mask is full and a sequence may have more queries than keys (rows are
            aligned at the bottom right; a row before the first key sees nothing under a causal mask, everything under a
            full one).
        softcap: c > 0 computes ``c * tanh(S / c)`` on the scores with their bias, before the mask; None or 0 is off.
        return_lse: return the log-sum-exp too.

    Returns:
        out, or (out, lse). out: like q with last dimension Dv; 0 for a row that sees nothing. lse: float32, natural
        logarithm, (H, Tq), for a dense batch (B, H, Lq); -inf for a row that sees nothing. lse is not differentiable.

    Raises:
        As `hstu_attention`.

    Source: Dao, "FlashAttention-2"; docs/attention.md, section 3.
    """
    flat = flatten(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alpha, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k),
        *(deterministic, check_inputs),
    ) + softmax_extras(softcap)
    return_lse = flag("return_lse", return_lse)
    backend = torch_if_imported()
    if backend is not None:
        if backend.is_compiling():
            return backend.traced_softmax(flat, return_lse)
        if backend.is_tensor(q):
            return backend.softmax(flat, return_lse)
    backend, convert = _route(q)
    result = backend.softmax(flat, return_lse)
    return tuple(map(convert, result)) if return_lse else convert(result)


def softmax_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    *,
    mask: Mask | IntervalMask | MaskFunction = _FULL,
    bias: Any = None,
    alpha: float | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    deterministic: bool = False,
    check_inputs: bool = False,
) -> Gradients:
    """The gradients of `softmax_attention`, without autograd.

    Arguments:
        dout: the gradient of out, out's shape and dtype, any strides.
        out, lse: what the forward call returned (return_lse=True).
        return_lse: taken so that the forward call's keywords can be passed on; a backward pass returns none.
        the others: as in the forward call.

    Returns:
        Gradients(dq, dk, dv, dbias), as `hstu_attention_backward`.

    Raises:
        As `hstu_attention`.
    """
    flat = flatten(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, mask, bias, alpha, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k),
        *(deterministic, check_inputs),
    ) + softmax_extras(softcap)
    backend, convert = _route(q)
    return _converted(backend.softmax_backward(dout, out, lse, flat), convert)


def _converted(gradients: Gradients, convert: Any) -> Gradients:
    """Gradients of a back end as those of q's library."""
    if convert is _same:
        return gradients

    def each(value: Any) -> Any:
        if value is None:
            return None
        return tuple(map(each, value)) if isinstance(value, tuple) else convert(value)

    return Gradients(*map(each, gradients))
