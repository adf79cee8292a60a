"""Random problems for the property tests, and how each is given to the library."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
import warploom as wl
from accuracy import rounded
from hypothesis import strategies as st
from reference import Array, Bias, Problem, Results

TORCH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
NUMPY_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@st.composite
def problems(draw: st.DrawFn, ops: tuple[str, ...] = ("hstu", "softmax"), biases: bool = True) -> Problem:
    """Any legal call: lengths, heads, masks, biases, scalars."""
    op = draw(st.sampled_from(ops))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "float16"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dense = draw(st.booleans())
    batch = draw(st.integers(1 if dense else 0, 4))
    longest = draw(st.sampled_from([3, 20, 80, 200]))
    slots_k = [int(x) for x in rng.integers(0, longest + 1, batch)]
    queries = draw(st.sampled_from(["same", "fewer", "more"] if op == "softmax" else ["same", "fewer"]))
    if dense:
        slots_k = slots_k[:1] * batch
    slots_q = list(slots_k)
    if queries == "fewer":
        slots_q = [int(rng.integers(0, n + 1)) for n in slots_k]
    if queries == "more":
        slots_q = [n + int(rng.integers(0, 9)) for n in slots_k]
    if dense:
        slots_q = slots_q[:1] * batch
    used_k = used_q = None
    if draw(st.booleans()) and queries != "more":
        used_k = [int(rng.integers(0, n + 1)) for n in slots_k]
        used_q = [int(rng.integers(0, min(n, m) + 1)) for n, m in zip(slots_q, used_k, strict=True)]
        if op == "softmax" and draw(st.booleans()):
            used_q = None
        elif op == "hstu" and queries == "same" and draw(st.booleans()):
            used_q = list(used_k)
    lengths_k = slots_k if used_k is None else used_k
    key_heads = draw(st.sampled_from([1, 2]))
    heads = key_heads * draw(st.sampled_from([1, 2, 3]))
    dim, value_dim = (draw(st.sampled_from([1, 5, 8, 24, 32, 40, 64])) for _ in range(2))
    extra_q, extra_k = (0, 0) if dense else (int(rng.integers(0, 3)), int(rng.integers(0, 3)))

    def normal(rows: int, count: int, size: int) -> Array:
        return rounded(rng.standard_normal((rows, count, size)), dtype)

    total_q, total_k = sum(slots_q) + extra_q, sum(slots_k) + extra_k
    problem = Problem(
        op,
        dtype,
        slots_q,
        slots_k,
        normal(total_q, heads, dim),
        normal(total_k, key_heads, dim),
        normal(total_k, key_heads, value_dim),
        normal(total_q, heads, value_dim),
        used_q,
        used_k,
        dense=dense,
    )
    _draw_mask(draw, rng, problem, lengths_k, total_q)
    if biases:
        _draw_bias(draw, rng, problem, queries, total_k)
    problem.alpha = draw(st.sampled_from([None, 0.5, -0.25, 0.0]))
    if op == "hstu":
        kind = draw(st.sampled_from(["default", "number", "rows"]))
        problem.bias_scaled = draw(st.booleans())
        if kind == "number":
            problem.divisor = draw(st.sampled_from([1.0, 37.0, -3.0]))
        if kind == "rows":
            problem.divisor = rng.uniform(0.5, 20, total_q).astype(np.float32)
    else:
        problem.softcap = draw(st.sampled_from([None, 0.0, 1.5, 20.0]))
    return problem


def _draw_mask(draw: st.DrawFn, rng: np.random.Generator, problem: Problem, lengths: list[int], total_q: int) -> None:
    kind = draw(st.sampled_from(["full", "causal", "window", "targets", "contexts", "both", "intervals"]))
    if kind == "intervals":
        heads = draw(st.sampled_from([1, problem.heads]))
        n = draw(st.integers(0, 4))
        problem.intervals = rng.integers(-5, max(lengths, default=0) + 20, (heads, total_q, n, 2)).astype(np.int32)
        return
    if kind == "window":
        problem.left = draw(st.sampled_from([None, 0, 1, 7, 50]))
        problem.right = draw(st.sampled_from([None, 0, 1, 7, 50]))
        return
    if kind == "full":
        return
    problem.right = 0
    if kind == "causal":
        return
    problem.left = draw(st.sampled_from([None, None, 0, 3, 30]))
    contexts = [0] * len(lengths)
    if kind in ("contexts", "both"):
        contexts = [int(rng.integers(0, n + 1)) for n in lengths]
        problem.contexts = contexts
    if kind in ("targets", "both"):
        problem.targets = [int(rng.integers(0, n - c + 1)) for n, c in zip(lengths, contexts, strict=True)]
        problem.group = draw(st.sampled_from([1, 2, 5]))
        problem.from_history_end = draw(st.booleans())
    shortest = min((n for n in lengths if n > 0), default=0)
    if kind == "contexts" and shortest > 0 and draw(st.booleans()):
        problem.contexts = int(rng.integers(0, shortest + 1))


def _draw_bias(draw: st.DrawFn, rng: np.random.Generator, problem: Problem, queries: str, total_k: int) -> None:
    # A time bias needs a key for every query; so does a row axis in key coordinates.
    more_queries = queries == "more" or (problem.used_k is not None and problem.used_q is None)
    kinds = ["none", "dense", "packed", "position"] + ([] if more_queries else ["time", "both"])
    kind = draw(st.sampled_from(kinds))
    if kind == "none":
        return
    rows = "q" if more_queries else draw(st.sampled_from(["k", "q"]))
    heads = draw(st.sampled_from([1, problem.heads]))
    dtype = draw(st.sampled_from(["float32", problem.dtype]))
    longest_q, longest_k = max(problem.slots_q, default=0), max(problem.slots_k, default=0)
    if kind == "dense":
        batch = draw(st.sampled_from([1, len(problem.slots_q)]))
        shape = (batch, heads, longest_k if rows == "k" else longest_q, longest_k)
        values = rounded(rng.standard_normal(shape), dtype)
        if draw(st.booleans()):
            values[rng.random(shape) < 0.2] = -np.inf
        problem.bias = Bias("dense", rows, dtype, values=values)
        return
    if kind == "packed":
        elements = 16 // (4 if dtype == "float32" else 2)
        counts = problem.slots_k if rows == "k" else problem.slots_q
        size = sum(n * (-(-m // elements) * elements) for n, m in zip(counts, problem.slots_k, strict=True))
        problem.bias = Bias("packed", rows, dtype, values=rounded(rng.standard_normal((heads, size)), dtype))
        return
    bias = Bias("bucketed")
    if kind in ("position", "both"):
        bias.position = rng.standard_normal((heads, draw(st.sampled_from([1, 10, 300])))).astype(np.float32)
    if kind in ("time", "both"):
        n_time = draw(st.sampled_from([1, 2, 16, 40]))
        bias.time = rng.standard_normal((draw(st.sampled_from([1, problem.heads])), n_time)).astype(np.float32)
        bias.timestamps = rng.integers(0, 10**6, total_k)
        if draw(st.booleans()):
            bias.thresholds = np.sort(rng.integers(0, 10**6, n_time - 1))
    problem.bias = bias


class Caller:
    """Gives a problem to the library as arrays of one kind.

    strided: q, k, v are views with gaps, as slices of a packed projection are.
    """

    def __init__(self, problem: Problem, kind: str = "torch", strided: bool = False) -> None:
        self.problem = problem
        self.kind = kind
        self.strided = strided

    def array(self, values: Any, dtype: str | None = None) -> Any:
        """A NumPy array as this kind's, contiguous; dtype converts floats."""
        if self.kind == "numpy":
            return np.ascontiguousarray(values if dtype is None else values.astype(NUMPY_DTYPES[dtype]))
        tensor = torch.from_numpy(np.ascontiguousarray(values).copy())
        return tensor if dtype is None else tensor.to(TORCH_DTYPES[dtype])

    def rows(self, values: Array, slots: list[int]) -> Any:
        """A (rows, heads, dim) array in the problem's layout."""
        problem = self.problem
        if problem.dense:
            values = values.reshape(len(slots), slots[0], *values.shape[1:])
        if not self.strided:
            return self.array(values, problem.dtype)
        *outer, heads, dim = values.shape
        wide = np.full((*outer, heads + 1, dim + 3), np.nan, np.float32)
        wide[..., 1:, 2 : 2 + dim] = values
        return self.array(wide, problem.dtype)[..., 1:, 2 : 2 + dim]

    def positional(self) -> dict[str, Any]:
        problem = self.problem
        arguments = {
            "q": self.rows(problem.q, problem.slots_q),
            "k": self.rows(problem.k, problem.slots_k),
            "v": self.rows(problem.v, problem.slots_k),
        }
        if not problem.dense:
            arguments["cu_seqlens_q"] = self.array(np.cumsum([0, *problem.slots_q], dtype=np.int32))
            if problem.slots_q != problem.slots_k or problem.q.shape[0] != problem.k.shape[0]:
                arguments["cu_seqlens_k"] = self.array(np.cumsum([0, *problem.slots_k], dtype=np.int64))
        return arguments

    def counts(self, counts: list[int] | int | None) -> Any:
        return counts if counts is None or isinstance(counts, int) else self.array(np.array(counts, np.int32))

    def bias(self) -> Any:
        bias = self.problem.bias
        if bias is None:
            return None
        if bias.kind == "bucketed":
            optional = {
                name: None if value is None else self.array(value)
                for name, value in (
                    ("position", bias.position),
                    ("time", bias.time),
                    ("timestamps", bias.timestamps),
                    ("time_bucket", bias.thresholds),
                )
            }
            return wl.BucketedBias(**optional)
        values = self.array(bias.values, bias.dtype)
        return wl.DenseBias(values, bias.rows) if bias.kind == "dense" else wl.PackedBias(values, bias.rows)

    def keywords(self) -> dict[str, Any]:
        problem = self.problem
        if problem.intervals is not None:
            mask: Any = wl.IntervalMask(self.array(problem.intervals))
        else:
            mask = wl.Mask(
                problem.left,
                problem.right,
                self.counts(problem.contexts),
                self.counts(problem.targets),
                problem.group,
                problem.from_history_end,
            )
        keywords: dict[str, Any] = {"mask": mask, "bias": self.bias(), "alpha": problem.alpha}
        keywords["seqused_q"] = self.counts(problem.used_q)
        keywords["seqused_k"] = self.counts(problem.used_k)
        if problem.op == "softmax":
            keywords["softcap"] = problem.softcap
            return keywords
        divisor = problem.divisor
        keywords["divisor"] = self.array(divisor) if isinstance(divisor, np.ndarray) else divisor
        keywords["bias_scaled_by_alpha"] = problem.bias_scaled
        return keywords

    def numpy(self, value: Any) -> Any:
        """A result as float32 NumPy."""
        if value is None:
            return None
        if isinstance(value, torch.Tensor):
            return value.detach().to(torch.float32).numpy()
        assert isinstance(value, np.ndarray)
        return value.astype(np.float32)

    def jagged(self, value: Any) -> Any:
        """A result like q, k or v as (rows, heads, dim)."""
        array = self.numpy(value)
        return array.reshape(-1, *array.shape[-2:])

    def jagged_lse(self, lse: Any) -> Any:
        array = self.numpy(lse)
        return array.transpose(1, 0, 2).reshape(array.shape[1], -1) if self.problem.dense else array

    def results(self, out: Any, lse: Any, gradients: wl.Gradients) -> Results:
        bias = self.problem.bias
        tables = (None, None, None)
        if bias is not None:
            bucketed = bias.kind == "bucketed"
            tables = (None, *gradients.dbias) if bucketed else (gradients.dbias, None, None)
        return Results(
            self.jagged(out),
            *(self.jagged(gradient) for gradient in gradients[:3]),
            None if lse is None else self.jagged_lse(lse),
            *(self.numpy(table) for table in tables),
        )

    def run(self, **options: Any) -> Results:
        """Forward and the functional backward."""
        positional, keywords = self.positional(), {**self.keywords(), **options}
        dout = self.rows(self.problem.dout, self.problem.slots_q)
        if self.problem.op == "hstu":
            out = wl.hstu_attention(**positional, **keywords)
            return self.results(out, None, wl.hstu_attention_backward(dout, **positional, **keywords))
        out, lse = wl.softmax_attention(**positional, **keywords, return_lse=True)
        gradients = wl.softmax_attention_backward(dout, **positional, out=out, lse=lse, **keywords)
        return self.results(out, lse, gradients)
