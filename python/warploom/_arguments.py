"""A call's arguments as one flat tuple: the order of the torch operators' schemas and of ``_call.py``.

    q, k, v, bias, position, time                                          tensors with gradients
    cu_seqlens_q, ..., time_bucket                                         other tensors
    max_seqlen_q, ..., check_inputs, bias kind and rows, mask function     numbers and texts
    HSTU: divisor_rows (tensor), divisor, bias_scaled_by_alpha, score function; softmax: softcap

Here user-level arguments become that tuple; kinds of Python numbers and of descriptions are checked, nothing else:
torch.compile reads these lines too, with numbers whose values it does not know.
"""

from __future__ import annotations

import numbers
import operator
from typing import Any

from . import _layout
from ._biases import BucketedBias, DenseBias, PackedBias
from ._functions import MaskFunction, ScoreFunction
from ._masks import IntervalMask, Mask

Flat = tuple[Any, ...]

# Positions in the flat tuple.
BIAS, POSITION, TIME = 3, 4, 5
NUM_DIFFERENTIABLE = 6
NUM_COMMON = 33
DETERMINISTIC = 26
BIAS_KIND = 28
MASK_FUNCTION = 30  # text, names, values
TENSOR_NAMES = (
    "q",
    "k",
    "v",
    "bias",
    "position",
    "time",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "num_contexts",
    "num_targets",
    "intervals",
    "timestamps",
    "time_bucket",
)
NUM_TENSORS = len(TENSOR_NAMES)
DIVISOR_ROWS = NUM_COMMON  # HSTU's only tensor behind the numbers
SCORE_FUNCTION = NUM_COMMON + 3  # text, slope, names, values
NUM_HSTU = NUM_COMMON + 7

_NO_BIAS = (None, None, None, None, None, _layout.NO_BIAS, _layout.ROWS_AUTO)
_ROWS = {"k": _layout.ROWS_KEY, "q": _layout.ROWS_QUERY}


def kind_name(value: Any) -> str:
    """What a value is, for a message: "list", "torch.Tensor"."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_integer(value: Any) -> bool:
    return type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


def integer(name: str, value: Any) -> int:
    if type(value) is int:
        return value
    if not is_integer(value):
        raise TypeError(f"{name} is a {kind_name(value)}; pass an int, or None where the signature has None")
    return operator.index(value)


def _optional_integer(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


def real(name: str, value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a {kind_name(value)}; pass a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} = {value} does not fit a double") from None


def _optional_real(name: str, value: Any) -> float | None:
    return None if value is None else real(name, value)


def flag(name: str, value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if type(value).__name__ in ("bool", "bool_") and getattr(value, "shape", ()) == ():
        return bool(value)  # NumPy's
    raise TypeError(f"{name} is a {kind_name(value)}; pass True or False")


def _counts(name: str, value: Any) -> tuple[Any, int | None]:
    """A per-sequence argument: (tensor, None), (None, int for all), or (None, None)."""
    if value is None:
        return None, None
    if not is_integer(value):
        return value, None  # a tensor; the back end checks its kind
    return None, operator.index(value)


def _bias_rows(rows: Any, default: int | None) -> int:
    if rows is None and default is not None:
        return default
    if not isinstance(rows, str):
        raise TypeError(f'rows is a {kind_name(rows)}; pass "k" or "q"')
    if rows not in _ROWS:
        raise ValueError(f'rows = "{rows}" is unknown; pass "k" (rows counted in key coordinates) or "q"')
    return _ROWS[rows]


def _flatten_bias(bias: Any) -> Flat:
    """(bias, position, time, timestamps, time_bucket, kind, rows)"""
    if bias is None:
        return _NO_BIAS
    if isinstance(bias, DenseBias):
        return (bias.values, None, None, None, None, _layout.DENSE_BIAS, _bias_rows(bias.rows, _layout.ROWS_AUTO))
    if isinstance(bias, PackedBias):
        return (bias.values, None, None, None, None, _layout.PACKED_BIAS, _bias_rows(bias.rows, None))
    if isinstance(bias, BucketedBias):
        return (
            None,
            bias.position,
            bias.time,
            bias.timestamps,
            bias.time_bucket,
            _layout.BUCKETED_BIAS,
            _layout.ROWS_AUTO,
        )
    # A plain tensor; the back end checks that it is one.
    return (bias, None, None, None, None, _layout.DENSE_BIAS, _layout.ROWS_AUTO)


def flatten(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    mask: Any,
    bias: Any,
    alpha: Any,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    seqused_q: Any,
    seqused_k: Any,
    deterministic: Any,
    check_inputs: Any,
) -> Flat:
    """The part of the flat tuple that both operators share."""
    intervals: Any = None
    left = right = None
    num_contexts, num_contexts_all, num_targets, num_targets_all = None, None, None, None
    group_size, from_history_end = 1, False
    function: Flat = (None, None, None)
    if isinstance(mask, Mask):
        left, right = _optional_integer("left", mask.left), _optional_integer("right", mask.right)
        num_contexts, num_contexts_all = _counts("num_contexts", mask.num_contexts)
        num_targets, num_targets_all = _counts("num_targets", mask.num_targets)
        group_size = integer("target_group_size", mask.target_group_size)
        from_history_end = flag("target_window_from_history_end", mask.target_window_from_history_end)
    elif isinstance(mask, IntervalMask):
        intervals = mask.intervals
        if intervals is None:
            raise TypeError("intervals is None; pass an int32 tensor (H or 1, Tq, n, 2)")
    elif isinstance(mask, MaskFunction):
        num_contexts, num_contexts_all = _counts("num_contexts", mask.num_contexts)
        num_targets, num_targets_all = _counts("num_targets", mask.num_targets)
        function = (mask._text, mask._names, list(mask._values))
    else:
        raise TypeError(
            f"mask is a {kind_name(mask)}; pass warploom.Mask, warploom.IntervalMask or warploom.MaskFunction"
        )
    used_q, used_q_all = _counts("seqused_q", seqused_q)
    used_k, used_k_all = _counts("seqused_k", seqused_k)
    values, position, time, timestamps, time_bucket, bias_kind, bias_rows = _flatten_bias(bias)
    return (
        q,
        k,
        v,
        values,
        position,
        time,
        cu_seqlens_q,
        cu_seqlens_k,
        used_q,
        used_k,
        num_contexts,
        num_targets,
        intervals,
        timestamps,
        time_bucket,
        _optional_integer("max_seqlen_q", max_seqlen_q),
        _optional_integer("max_seqlen_k", max_seqlen_k),
        used_q_all,
        used_k_all,
        left,
        right,
        num_contexts_all,
        num_targets_all,
        group_size,
        from_history_end,
        _optional_real("alpha", alpha),
        flag("deterministic", deterministic),
        flag("check_inputs", check_inputs),
        bias_kind,
        bias_rows,
        *function,
    )


def _flatten_score(score: Any) -> Flat:
    """(text, slope, names, values)"""
    if score is None:
        return (None, None, None, None)
    if not isinstance(score, ScoreFunction):
        raise TypeError(f"score is a {kind_name(score)}; pass warploom.ScoreFunction, or None for silu")
    return (score._text, score._slope, score._names, list(score._values))


def hstu_extras(divisor: Any, bias_scaled_by_alpha: Any, score: Any = None) -> Flat:
    """(divisor_rows, divisor, bias_scaled_by_alpha), and the score function's text, slope, names and values"""
    scaled = flag("bias_scaled_by_alpha", bias_scaled_by_alpha)
    function = _flatten_score(score)
    if divisor is None:
        return (None, None, scaled, *function)
    if isinstance(divisor, numbers.Real):
        return (None, real("divisor", divisor), scaled, *function)
    return (divisor, None, scaled, *function)  # a tensor; the back end checks its kind


def softmax_extras(softcap: Any) -> Flat:
    """(softcap,)"""
    return (0.0 if softcap is None else real("softcap", softcap),)
