"""The accuracy rule of docs/attention.md, section 8, as one call: `check(problem, results)`.

For 16-bit types the yardstick is the same steps in float32 with a rounding wherever a fused kernel has to round, drawn
three times; a tensor or a row may be off by little more than the worst draw. float32 has a fixed limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from reference import Array, Problem, Results, Steps, evaluate

# The largest relative rounding of one conversion, and the spacing of subnormals.
_UNIT = {"bfloat16": 2.0**-9, "float16": 2.0**-11, "float32": 2.0**-24}
_FLOOR = 8 * 2.0**-24
_FLOAT32_LIMIT = 2e-5
# Half the spacing of float16's subnormals: what rounding can lose of a value near 0.
_SUBNORMAL = {"bfloat16": 0.0, "float16": 2.0**-25, "float32": 0.0}


def rounded(x: Array, dtype: str) -> Array:
    """x (any float type) rounded to nearest even in `dtype`, as float32."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        bits = x.view(np.uint32)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isfinite(x), nearest.view(np.float32), x)
    return x


def _draw(problem: Problem, stored_out: Array, seed: int | None) -> Results:
    """One draw of the yardstick; with a seed each row of P and dS is scaled by a random factor around its rounding.

    Its backward pass reads the out that the one under test read: that rounding is not drawn again.
    """
    generator = None if seed is None else np.random.default_rng(seed)

    def round_factor(x: Array) -> Array:
        if generator is None:
            return rounded(x, problem.dtype)
        factor = generator.uniform(1, 2, (*x.shape[:-1], 1)).astype(np.float32)
        return rounded(x * factor, problem.dtype) / factor

    bias_dtype = problem.dtype if problem.bias is None else problem.bias.dtype
    steps = Steps(
        np.float32,
        round_factor,
        store=lambda x: rounded(x, problem.dtype),
        store_bias=lambda x: rounded(x, bias_dtype),
        stored_out=stored_out,
    )
    return evaluate(problem, steps)[0]


def _row_norms(x: Array, per_entry: bool) -> Array:
    """Norms of the rows that the rule judges: the last axis, or each entry of a table."""
    return np.abs(x) if per_entry else np.sqrt((x * x).sum(axis=-1))


def _describe(name: str, errors: Array, limits: Array) -> str:
    worst = np.unravel_index(np.argmax(errors - limits), errors.shape)
    place = tuple(int(index) for index in worst)
    return f"{name}{list(place)}: error {errors[worst]:.3e}, limit {limits[worst]:.3e}"


def check(problem: Problem, actual: Results) -> None:
    """Raises AssertionError naming the first tensor or row of `actual` that breaks the rule."""
    exact, bound, magnitude = evaluate(problem)
    is_float32 = problem.dtype == "float32"
    draws = [] if is_float32 else [_draw(problem, actual.out, seed) for seed in (None, 1, 2)]
    unit = _UNIT[problem.dtype]
    for name, expected in exact.tensors().items():
        found = getattr(actual, name)
        assert found is not None, f"{name} is missing"
        assert found.shape == expected.shape, f"{name} has shape {found.shape}, expected {expected.shape}"
        difference = found.astype(np.float64) - expected
        assert np.isfinite(difference).all(), f"{name} is not finite at {np.argwhere(~np.isfinite(difference))[0]}"
        if expected.size == 0:
            continue
        per_entry = name in ("dposition", "dtime")
        rows = _row_norms(difference, per_entry)
        floor = _FLOOR * _row_norms(getattr(magnitude, name), per_entry)
        if is_float32:
            limits = np.maximum(_FLOAT32_LIMIT * _row_norms(expected, per_entry), floor)
            total = max(_FLOAT32_LIMIT * float(np.linalg.norm(expected)), float(np.linalg.norm(floor)))
        else:
            drawn = [getattr(draw, name).astype(np.float64) - expected for draw in draws]
            # Single roundings: of P or dS, propagated, and of the stored value.
            variance = getattr(bound, name) * unit**2 + (unit * expected) ** 2 + _SUBNORMAL[problem.dtype] ** 2
            row_bound = np.sqrt(variance) if per_entry else np.sqrt(variance.sum(axis=-1))
            drawn_rows = np.max([_row_norms(x, per_entry) for x in drawn], axis=0)
            limits = np.maximum(np.maximum(1.1 * drawn_rows, 2 * row_bound), floor)
            n = max(1, int(np.count_nonzero(_row_norms(expected, per_entry))))
            worst = max(float(np.linalg.norm(x)) for x in drawn)
            total = max(1.1 * (1 + 1 / np.sqrt(n)) * worst, float(np.linalg.norm(floor)))
            if expected.size <= _FEW:
                total = max(total, float(np.sqrt(variance.sum())))
        assert (rows <= limits).all(), _describe(f"row {name}", rows, limits)
        error = float(np.linalg.norm(difference))
        assert error <= total, f"tensor {name}: error {error:.3e}, limit {total:.3e}"
    if exact.lse is not None and actual.lse is not None:
        check_lse(exact, actual.lse)


_FEW = 64  # "a few numbers": the draws' norm is then itself a matter of luck


def check_lse(exact: Results, lse: Any) -> None:
    expected = exact.lse
    assert expected is not None
    nothing = np.isneginf(expected)
    assert (np.isneginf(lse) == nothing).all(), "lse is -inf somewhere else than where a row sees nothing"
    errors = np.abs(np.where(nothing, 0, lse) - np.where(nothing, 0, expected))
    limits = _FLOAT32_LIMIT * (1 + exact.largest_score)
    assert (errors <= limits).all(), _describe("lse", errors, limits)
