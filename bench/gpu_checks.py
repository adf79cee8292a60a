"""The edge suite: both operators on CUDA tensors against gpu_reference.py, and what else a call on a GPU promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gpu_functions
import gpu_reference
import torch
import warploom as wl
from gpu_cases import PROBLEMS, SPECIAL_CHECKS, Problem
from gpu_reference import Inputs, Verdict
from torch import Tensor

DEVICE = "cuda"
GUARD = 1024  # elements of NaN before and after each tensor; a multiple of 16 bytes


def run(name: str) -> Verdict:
    if name in PROBLEMS:
        problem = PROBLEMS[name]
        inputs, call = build(problem, seed=sum(map(ord, name)))
        if not problem.softmax:
            return gpu_reference.judge(problem, inputs, as_rows(wl.hstu_attention(**poisoned(call))))
        out, lse = wl.softmax_attention(**poisoned(call), return_lse=True)
        by_rows = lse.T if lse.ndim == 2 else lse.transpose(1, 2).flatten(0, 1)
        return gpu_reference.judge(problem, inputs, as_rows(out), by_rows)
    return SPECIAL[name]()


# --- problems as tensors ----------------------------------------------------------------------------------------------


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of NaN with NaN around it."""
    size = 1
    for extent in shape:
        size *= extent
    return torch.full((size + 2 * GUARD,), float("nan"), dtype=dtype, device=DEVICE)[GUARD : GUARD + size].view(shape)


def poisoned(call: dict[str, Any]) -> dict[str, Any]:
    """Leaves NaN in the memory that the call's output is likely to get."""
    q, v = call["q"], call["v"]
    torch.full((*q.shape[:-1], v.shape[-1]), float("nan"), dtype=q.dtype, device=DEVICE)
    return call


def as_rows(out: Tensor) -> Tensor:
    return out.flatten(0, 1) if out.ndim == 4 else out


def _layout(layout: str, batch: int, rows: int, heads: int, dims: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Tensors (rows, heads, dim), one for each dim, in one memory layout; dense: (batch, length, heads, dim)."""
    if layout == "qkv":
        assert len(set(dims)) == 1, "a packed tensor has one head dimension"
        return list(guarded((rows, len(dims), heads, dims[0]), dtype).unbind(1))
    if layout == "gaps":
        return [guarded((rows, heads + 1, dim + 16), dtype)[:, :heads, 8 : dim + 8] for dim in dims]
    if layout == "heads_first":
        return [guarded((heads, rows, dim), dtype).transpose(0, 1) for dim in dims]
    if layout == "dense":
        return [guarded((batch, rows // batch, heads, dim), dtype) for dim in dims]
    if layout == "dense_transposed":
        return [guarded((batch, heads, rows // batch, dim), dtype).transpose(1, 2) for dim in dims]
    return [guarded((rows, heads, dim), dtype) for dim in dims]


def build(problem: Problem, seed: int) -> tuple[Inputs, dict[str, Any]]:
    """Random tensors of a problem: as the reference reads them, and as the call's arguments.

    Unused rows, rows after the last sequence and gaps between rows hold NaN.
    """
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    p = problem
    dtype = torch.bfloat16 if p.bfloat16 else torch.float16
    slots_q = list(p.slots_q)
    slots_k = slots_q if p.slots_k is None else list(p.slots_k)
    used_q, used_k = (_for_each(used, slots, slots) for used, slots in ((p.used_q, slots_q), (p.used_k, slots_k)))
    contexts, targets = (_for_each(count, used_k, [0] * len(used_k)) for count in (p.contexts, p.targets))
    total_q = sum(slots_q) + p.extra_rows
    total_k = sum(slots_k) + p.extra_rows
    key_heads = p.heads if p.key_heads is None else p.key_heads
    batch = len(slots_q)
    if p.layout == "qkv":
        q, k, v = _layout("qkv", batch, total_q, p.heads, (p.dim, p.dim, p.value_dim), dtype)
    else:
        (q,) = _layout(p.layout, batch, total_q, p.heads, (p.dim,), dtype)
        k, v = _layout(p.layout, batch, total_k, key_heads, (p.dim, p.value_dim), dtype)

    def fill(tensor: Tensor, slots: list[int], used: list[int], spread: float) -> Tensor:
        """Random values in the used rows; returns (rows, heads, dim)."""
        first = 0
        for b, (slot, length) in enumerate(zip(slots, used, strict=True)):
            place = tensor[b, :length] if tensor.ndim == 4 else tensor[first : first + length]
            place.copy_(torch.randn(place.shape, generator=generator, device=DEVICE) * spread)
            first += slot
        return tensor.reshape(-1, *tensor.shape[-2:])

    inputs = Inputs(
        fill(q, slots_q, used_q, 1.0),
        fill(k, slots_k, used_k, 1.0),
        fill(v, slots_k, used_k, 1.0),
        slots_q,
        slots_k,
        used_q,
        used_k,
        contexts,
        targets,
        alpha=p.dim**-0.5 if p.alpha is None else p.alpha,
        divisor=1.0,
    )
    call: dict[str, Any] = {"q": q, "k": k, "v": v}
    if p.constant_score is not None:
        # One coordinate of q times one of k, a power of two, gives the score; alpha is 1.
        scale = 1.0
        while abs(p.constant_score) / scale > 30000:
            scale *= 2
        for rows, slots, used, value in ((q, slots_q, used_q, p.constant_score / scale), (k, slots_k, used_k, scale)):
            fill(rows, slots, used, 0.0)
            first = 0
            for slot, length in zip(slots, used, strict=True):
                rows[first : first + length, :, 0] = value
                first += slot
        inputs.q, inputs.k = q, k
        inputs.alpha = 1.0
        call["alpha"] = 1.0
    elif p.alpha is not None:
        call["alpha"] = p.alpha

    lengths_dtype = torch.int64 if p.int64_lengths else torch.int32
    if "dense" not in p.layout:
        call["cu_seqlens_q"] = _cumulative(slots_q, lengths_dtype)
        if p.slots_k is not None:
            call["cu_seqlens_k"] = _cumulative(slots_k, lengths_dtype)
        if p.max_seqlen is not None:
            longest = p.max_seqlen == "given"
            call["max_seqlen_q"] = max(slots_q, default=0) if longest else p.max_seqlen
            call["max_seqlen_k"] = max(slots_k, default=0) if longest else p.max_seqlen
    for name, given in (("seqused_q", p.used_q), ("seqused_k", p.used_k)):
        if given is not None:
            call[name] = given if isinstance(given, int) else _int32(given)
    _add_mask(p, inputs, call, total_q, generator)
    if p.bias is not None:
        _add_bias(p, inputs, call, generator)
    if p.softmax:
        if p.softcap is not None:
            call["softcap"] = p.softcap
        return inputs, call
    if not p.bias_scaled:
        call["bias_scaled_by_alpha"] = False
    if p.score is not None:
        text, slope, parameters = gpu_functions.SCORES[p.score]
        call["score"] = wl.ScoreFunction(text, slope, **parameters)
    if p.divisor == "rows":
        rows = torch.rand(total_q, generator=generator, device=DEVICE) * 100 + 1
        inputs.divisor = call["divisor"] = rows
    elif p.divisor is not None:
        inputs.divisor = call["divisor"] = float(p.divisor)
    else:
        inputs.divisor = float(max(1, max(slots_q, default=0)))
    return inputs, call


def _add_mask(p: Problem, inputs: Inputs, call: dict[str, Any], total_q: int, generator: torch.Generator) -> None:
    if p.intervals is not None:
        longest = max(inputs.slots_k, default=0)
        shape = (p.interval_heads, total_q, p.intervals)
        begin = torch.randint(-20, longest + 20, shape, generator=generator, device=DEVICE)
        length = torch.randint(-10, longest // 2 + 20, shape, generator=generator, device=DEVICE)
        end = torch.where(torch.rand(shape, generator=generator, device=DEVICE) < 0.1, 2**31 - 1, begin + length)
        inputs.intervals = torch.stack((begin, end), dim=3).int().contiguous()
        call["mask"] = wl.IntervalMask(inputs.intervals)
        return

    def count(value: Any) -> Any:
        return value if value is None or isinstance(value, int) else _int32(value)

    if p.mask_function is not None:
        text, parameters = gpu_functions.MASKS[p.mask_function]
        counts = {"num_contexts": count(p.contexts), "num_targets": count(p.targets)}
        call["mask"] = wl.MaskFunction(text, **counts, **parameters)
        return
    call["mask"] = wl.Mask(p.left, p.right, count(p.contexts), count(p.targets), p.group, p.from_history_end)


def _add_bias(p: Problem, inputs: Inputs, call: dict[str, Any], generator: torch.Generator) -> None:
    """R as the call takes it and as the reference does. Stored values are NaN wherever no row sees them."""
    batch, heads = len(inputs.slots_q), p.heads if p.bias_heads is None else p.bias_heads
    dtype = torch.float32 if p.bias_float32 else inputs.q.dtype

    def drawn(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device=DEVICE)
        masked = torch.rand(shape, generator=generator, device=DEVICE) < p.bias_masked
        return values.masked_fill(masked, -torch.inf)

    seen, first = [], 0
    for b, slot in enumerate(inputs.slots_q):
        see = gpu_reference.visible(p, inputs, b, first)
        seen.append(see.any(dim=0, keepdim=True) if heads == 1 else see.expand(p.heads, -1, -1))
        first += slot

    inputs.bias = []
    if p.bias in ("position", "time", "bucketed"):
        call["bias"] = _bucketed(p, inputs, heads, drawn)
        return
    rows_of = [torch.arange(lq, device=DEVICE) for lq in inputs.used_q]
    if p.bias_rows == "k":
        rows_of = [i + lk - lq for i, lq, lk in zip(rows_of, inputs.used_q, inputs.used_k, strict=True)]
    if p.bias == "dense":
        columns = call.get("max_seqlen_k", max(inputs.slots_k, default=0))
        rows = columns if p.bias_rows == "k" else call.get("max_seqlen_q", max(inputs.slots_q, default=0))
        width = columns + p.bias_offset if p.bias_offset else -(-columns // 8) * 8 + 8
        shape = (batch if p.bias_batch else 1, heads, rows, width)
        values = guarded(shape, dtype)[..., p.bias_offset : p.bias_offset + columns]
        if not p.bias_batch:
            values.copy_(drawn(*values.shape))
        for b in range(batch):
            lq, lk = inputs.used_q[b], inputs.used_k[b]
            row = rows_of[b]
            there = (row >= 0) & (row < rows)
            width = min(lk, columns)
            target = values[b if p.bias_batch else 0]
            if p.bias_batch:
                fresh = drawn(heads, lq, width).to(dtype).masked_fill(~seen[b][:, :, :width], torch.nan)
                target[:, row[there], :width] = fresh[:, there]
            bias = torch.zeros(heads, lq, lk, device=DEVICE)
            bias[:, there, :width] = target[:, row[there], :width].float()
            inputs.bias.append(bias)
        inputs.bias_shapes = {"dbias": tuple(values.shape)}
        call["bias"] = wl.DenseBias(values, rows=p.bias_rows)
        return
    chunk = 4 if p.bias_float32 else 8
    pitches = [-(-slot // chunk) * chunk for slot in inputs.slots_k]
    sizes = [
        pitch * rows
        for pitch, rows in zip(pitches, inputs.slots_k if p.bias_rows == "k" else inputs.slots_q, strict=True)
    ]
    values = guarded((heads, sum(sizes)), dtype)
    first = 0
    for b in range(batch):
        lq, lk = inputs.used_q[b], inputs.used_k[b]
        part = values[:, first : first + sizes[b]].unflatten(1, (-1, max(1, pitches[b])))
        there = rows_of[b] >= 0
        fresh = drawn(heads, lq, lk).to(dtype).masked_fill(~seen[b], torch.nan)
        part[:, rows_of[b][there], :lk] = fresh[:, there]
        bias = fresh.float()
        bias[:, ~there] = 0
        inputs.bias.append(bias)
        first += sizes[b]
    inputs.bias_shapes = {"dbias": tuple(values.shape)}
    call["bias"] = wl.PackedBias(values, rows=p.bias_rows)


def _bucketed(p: Problem, inputs: Inputs, heads: int, drawn: Callable[..., Tensor]) -> Any:
    """Tables shorter than the sequences, so that both ends are clamped; timestamps mostly, not always, increase."""
    generator = torch.Generator().manual_seed(len(p.name))
    position = drawn(heads, 100) if p.bias in ("position", "bucketed") else None
    time = drawn(heads, 40) if p.bias in ("time", "bucketed") else None
    total_k = inputs.k.shape[0]
    steps = torch.randint(-p.time_span // 8, p.time_span + 1, (total_k,), generator=generator)
    timestamps = (steps.cumsum(0) + 1_600_000_000).to(DEVICE)
    thresholds = torch.tensor([math.ceil(math.exp(0.301 * n)) for n in range(1, 40)], device=DEVICE)
    given = None
    if p.thresholds:
        given = torch.randint(1, 40 * p.time_span, (39,), generator=generator).sort().values.to(DEVICE)
        thresholds = given
    tables = {"dposition": position, "dtime": time}
    inputs.bias_shapes = {name: tuple(table.shape) for name, table in tables.items() if table is not None}
    assert inputs.bias is not None
    inputs.buckets = []
    first = 0
    for lq, lk, slot in zip(inputs.used_q, inputs.used_k, inputs.slots_k, strict=True):
        r = torch.arange(lq, device=DEVICE)[:, None] + lk - lq
        bias = torch.zeros(heads, lq, lk, device=DEVICE)
        if position is not None:
            bias += position[:, (r - torch.arange(lk, device=DEVICE)[None]).clamp(0, 99)]
        if time is not None and lq > 0:
            t = timestamps[first : first + lk]
            bucket = torch.searchsorted(thresholds, (t[r] - t[None]).abs(), right=True)
            bias += time[:, bucket]
            inputs.buckets.append(bucket)
        else:
            inputs.buckets.append(torch.zeros(lq, lk, dtype=torch.long, device=DEVICE))
        inputs.bias.append(bias)
        first += slot
    return wl.BucketedBias(position, time, None if time is None else timestamps, given)


def _for_each(values: tuple[int, ...] | int | None, lengths: list[int], absent: list[int]) -> list[int]:
    if values is None:
        return list(absent)
    if isinstance(values, int):
        return [values if length > 0 else 0 for length in lengths]
    return list(values)


def _int32(values: Any) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device=DEVICE)


def _cumulative(lengths: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    total, sums = 0, [0]
    for length in lengths:
        total += length
        sums.append(total)
    return torch.tensor(sums, dtype=dtype, device=DEVICE)


# --- checks that are no single problem --------------------------------------------------------------------------------


def _registered(operator: str, backward: tuple[Any, ...], forward: tuple[Any, ...]) -> Verdict:
    """torch.library.opcheck of "hstu" or "softmax" attention; forward: with leaves that need a gradient."""
    results = torch.library.opcheck(
        getattr(torch.ops.warploom, f"{operator}_attention_backward").default,
        backward,
        test_utils=("test_schema", "test_faketensor"),
        raise_exception=False,
    )
    results |= {
        f"forward {name}": result
        for name, result in torch.library.opcheck(
            getattr(torch.ops.warploom, f"{operator}_attention").default,
            forward,
            test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"),
            raise_exception=False,
        ).items()
    }
    bad = {name: result for name, result in results.items() if result != "SUCCESS"}
    return _same(not bad, f"{bad}")


def _same(condition: bool, message: str) -> Verdict:
    return Verdict(condition, 0.0 if condition else 1.0, 0.0, "" if condition else message)


def _simple(**changes: Any) -> dict[str, Any]:
    """A legal call: two sequences of 70 and 130 rows."""
    torch.manual_seed(3)
    shape = (200, 2, 64)
    call: dict[str, Any] = {name: torch.randn(shape, device=DEVICE).bfloat16() for name in "qkv"}
    call["cu_seqlens_q"] = _int32((0, 70, 200))
    call["max_seqlen_q"] = call["max_seqlen_k"] = 130
    return {**call, **changes}


def two_billion_elements() -> Verdict:
    """q, k, v and out of more than 2^31 elements each; the first, a middle and the last sequences are judged."""
    length, heads, dim = 100, 4, 256
    batch = (2**31 + 2**24) // (length * heads * dim)
    problem = Problem("slice", slots_q=(length,) * 3, heads=heads, dim=dim, value_dim=dim)
    cu_seqlens = torch.arange(batch + 1, dtype=torch.int32, device=DEVICE) * length
    shape = (batch * length, heads, dim)
    generator = torch.Generator(device=DEVICE).manual_seed(5)
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device=DEVICE).normal_(generator=generator) for _ in range(3))
    out = wl.hstu_attention(q, k, v, cu_seqlens, max_seqlen_q=length, max_seqlen_k=length)
    worst = Verdict(True, 0.0, 0.0)
    for first in (0, batch // 2, batch - 3):
        rows = slice(first * length, (first + 3) * length)
        slots = [length] * 3
        inputs = Inputs(
            q[rows], k[rows], v[rows], slots, slots, slots, slots, [0] * 3, [0] * 3, dim**-0.5, float(length)
        )
        verdict = gpu_reference.judge(problem, inputs, out[rows])
        if not verdict.ok or verdict.error > worst.error:
            worst = verdict
        if not verdict.ok:
            break
    return worst


def nan_stays_in_its_sequence() -> Verdict:
    call = _simple(divisor=10.0)
    clean = wl.hstu_attention(**call)
    for name in "qkv":
        call[name] = call[name].clone()
        call[name][:70] = float("nan")
    dirty = wl.hstu_attention(**poisoned(call))
    if not torch.equal(clean[70:], dirty[70:]):
        return _same(False, "a NaN reached another sequence")
    if not torch.isnan(dirty[:70]).all():
        return _same(False, "a NaN in a visible row did not reach the result")
    # A NaN query row reaches its own row only; a NaN key no row that is masked by whole tiles before it.
    call = _simple(divisor=10.0)
    call["q"] = call["q"].clone()
    call["q"][100] = float("nan")
    dirty = wl.hstu_attention(**call)
    others = torch.arange(200, device=DEVICE) != 100
    same = torch.equal(dirty[others], clean[others]) and bool(torch.isnan(dirty[100]).all())
    return _same(same, "a NaN in one query row reached other rows, or not its own")


def bias_does_not_leak() -> Verdict:
    """A NaN in a visible place of R reaches that row of that head only."""
    bias = torch.randn(2, 2, 130, 130, device=DEVICE).bfloat16()
    verdicts = []
    for attend in (wl.hstu_attention, wl.softmax_attention):
        call = _simple(mask=wl.Mask.causal(), **({"divisor": 10.0} if attend is wl.hstu_attention else {}))
        clean = attend(**call, bias=bias)
        dirty = bias.clone()
        dirty[1, 0, 100, 20] = float("nan")  # row 70 + 100 of head 0
        dirty[1, 1, 50, 51] = float("nan")  # nobody sees it
        found = attend(**call, bias=dirty)
        others = torch.ones(200, 2, dtype=torch.bool, device=DEVICE)
        others[170, 0] = False
        same = torch.equal(found[others], clean[others]) and bool(torch.isnan(found[170, 0]).all())
        verdicts.append(_same(same, f"{attend.__name__}: a NaN of the bias reached other rows, or not its own"))
    return _all(verdicts)


def softmax_nan() -> Verdict:
    """A NaN query row reaches its own row of out and LSE, and nothing else."""
    call = _simple()
    clean, clean_lse = wl.softmax_attention(**call, return_lse=True)
    call["q"] = call["q"].clone()
    call["q"][100] = float("nan")
    out, lse = wl.softmax_attention(**poisoned(call), return_lse=True)
    others = torch.arange(200, device=DEVICE) != 100
    same = torch.equal(out[others], clean[others]) and torch.equal(lse[:, others], clean_lse[:, others])
    return _same(
        same and bool(torch.isnan(out[100]).all() and torch.isnan(lse[:, 100]).all()),
        "a NaN in one query row reached other rows, or not its own",
    )


def result_is_independent_of_the_batch() -> Verdict:
    call = _simple(divisor=10.0)
    together = wl.hstu_attention(**call)
    alone = {name: call[name][70:].contiguous() for name in "qkv"}
    single = wl.hstu_attention(
        **alone, cu_seqlens_q=_int32((0, 130)), max_seqlen_q=4000, max_seqlen_k=4000, divisor=10.0
    )
    return _same(torch.equal(single, together[70:]), "a sequence's result depends on its batch or on max_seqlen")


def repeated_bitwise() -> Verdict:
    problem = PROBLEMS["mask-ctx-tgt-window"]
    _, call = build(problem, seed=1)
    first = wl.hstu_attention(**call)
    same = all(torch.equal(first, wl.hstu_attention(**poisoned(call), deterministic=n % 2 == 0)) for n in range(20))
    return _same(same, "repeated calls differ")


def torch_compile() -> Verdict:
    call = _simple(divisor=10.0)

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        return wl.hstu_attention(q * 2, k, v, cu_seqlens, max_seqlen_q=130, max_seqlen_k=130, divisor=10.0) + 1

    arguments = (call["q"], call["k"], call["v"], call["cu_seqlens_q"])
    compiled = torch.compile(attend, fullgraph=True)(*arguments)
    return _same(torch.equal(compiled, attend(*arguments)), "torch.compile changes the result")


def opcheck() -> Verdict:
    from warploom._arguments import flatten, hstu_extras

    call = _simple()
    flat = flatten(
        *(
            call["q"],
            call["k"],
            call["v"],
            call["cu_seqlens_q"],
            None,
            wl.Mask.causal(),
            None,
            None,
            130,
            130,
            None,
            None,
            False,
            False,
        )
    ) + hstu_extras(10.0, True)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(
        torch.ops.warploom.hstu_attention.default, flat, test_utils=tests, raise_exception=False
    )
    bad = {name: result for name, result in results.items() if result != "SUCCESS"}
    return _same(not bad, f"{bad}")


def side_stream() -> Verdict:
    """The call runs on the current stream: after what was queued there, not on the default one."""
    call = _simple(divisor=10.0)
    expected = wl.hstu_attention(**call)
    late = torch.zeros_like(call["q"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(call["q"])
        found = wl.hstu_attention(**{**call, "q": late})
    stream.synchronize()
    return _same(torch.equal(found, expected), "a call on a side stream did not wait for that stream's work")


def graph_capture() -> Verdict:
    call = _simple(divisor=10.0)
    wl.hstu_attention(**call)  # compiled and loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = wl.hstu_attention(**call)
    for seed in range(3):
        torch.manual_seed(seed)
        call["q"].copy_(torch.randn_like(call["q"]))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(captured, wl.hstu_attention(**call)):
            return _same(False, "a replayed graph differs from the call")
    return _same(True, "")


def softmax_graph_capture() -> Verdict:
    """With a bias and lengths that change between replays."""
    bias = torch.randn(1, 2, 130, 130, device=DEVICE).bfloat16()
    call = _simple(bias=bias, mask=wl.Mask.causal())
    wl.softmax_attention(**call)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = wl.softmax_attention(**call)
    for middle in (70, 100, 120):
        call["cu_seqlens_q"].copy_(_int32((0, middle, 200)))
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(captured, wl.softmax_attention(**call)):
            return _same(False, "a replayed graph differs from the call")
    return _same(True, "")


def softmax_torch_compile() -> Verdict:
    call = _simple()
    bias = torch.randn(1, 2, 130, 130, device=DEVICE).bfloat16()

    def attend(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, bias: Tensor) -> Tensor:
        out, lse = wl.softmax_attention(
            q * 2, k, v, cu_seqlens, bias=bias, max_seqlen_q=130, max_seqlen_k=130, return_lse=True
        )
        return out.float().sum() + lse.sum()

    arguments = (call["q"], call["k"], call["v"], call["cu_seqlens_q"], bias)
    compiled, eager = torch.compile(attend, fullgraph=True)(*arguments), attend(*arguments)
    return _same(torch.allclose(compiled, eager, rtol=1e-3), f"torch.compile gives {compiled}, eager {eager}")


def softmax_opcheck() -> Verdict:
    from warploom._arguments import flatten, softmax_extras

    call = _simple()
    bias = torch.randn(1, 2, 130, 130, device=DEVICE).bfloat16()
    lengths = (call["cu_seqlens_q"], None)
    flat = flatten(
        call["q"], call["k"], call["v"], *lengths, wl.Mask.causal(), bias, None, 130, 130, None, None, False, False
    ) + softmax_extras(None)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(
        torch.ops.warploom.softmax_attention.default, flat, test_utils=tests, raise_exception=False
    )
    bad = {name: result for name, result in results.items() if result != "SUCCESS"}
    return _same(not bad, f"{bad}")


def numpy_like_arrays() -> Verdict:
    """An array of another library on the GPU, through DLPack."""

    class OnlyDlpack:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    call = _simple()
    expected = wl.hstu_attention(**call)
    wrapped = {name: OnlyDlpack(value) if isinstance(value, Tensor) else value for name, value in call.items()}
    return _same(
        torch.equal(torch.from_dlpack(wl.hstu_attention(**wrapped)), expected), "DLPack inputs change the result"
    )


def autograd_forward() -> Verdict:
    """A gradient may be required: the result is the same."""
    call = _simple(divisor=10.0)
    expected = wl.hstu_attention(**call)
    call["q"] = call["q"].clone().requires_grad_()
    return _same(torch.equal(wl.hstu_attention(**call), expected), "requires_grad changes the result")


def _refusal(call: Callable[[], Any], kind: type[Exception], words: tuple[str, ...]) -> Verdict:
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        return _same(not missing, f"the message lacks {missing}: {error}")
    except Exception as error:
        return _same(False, f"{type(error).__name__} instead of {kind.__name__}: {error}")
    return _same(False, "no error")


def _all(verdicts: list[Verdict]) -> Verdict:
    return next((verdict for verdict in verdicts if not verdict.ok), Verdict(True, 0.0, 0.0))


def check_inputs() -> Verdict:
    """With check_inputs the values of lengths and counts are checked on a GPU too."""

    def refused(words: tuple[str, ...], **changes: Any) -> Verdict:
        return _refusal(lambda: wl.hstu_attention(**_simple(check_inputs=True, **changes)), ValueError, words)

    def mask(**counts: Any) -> Any:
        return wl.Mask(right=0, **counts)

    plain = _simple()
    if not torch.equal(wl.hstu_attention(**plain), wl.hstu_attention(**plain, check_inputs=True)):
        return _same(False, "check_inputs changes the result")
    return _all(
        [
            refused(("cu_seqlens_q", "1"), cu_seqlens_q=_int32((1, 70, 200))),
            refused(("cu_seqlens_q", "60"), cu_seqlens_q=_int32((0, 70, 60))),
            refused(("cu_seqlens_q", "201"), cu_seqlens_q=_int32((0, 70, 201))),
            refused(("max_seqlen_q", "129"), max_seqlen_q=129),
            refused(("num_targets", "71"), mask=mask(num_targets=_int32((71, 0)))),
            refused(("num_contexts", "num_targets"), mask=mask(num_targets=_int32((70, 0)), num_contexts=1)),
            refused(("num_contexts", "-1"), mask=mask(num_contexts=_int32((0, -1)))),
            refused(("seqused_k", "131"), seqused_k=_int32((70, 131))),
            refused(("seqused_q",), seqused_k=_int32((60, 130))),
        ]
    )


def refused_float32() -> Verdict:
    call = _simple()
    for name in "qkv":
        call[name] = call[name].float()
    return _refusal(lambda: wl.hstu_attention(**call), TypeError, ("q", "float32"))


def refused_mixed_devices() -> Verdict:
    on_host = torch.zeros(200, 2, 64).bfloat16()
    lengths = torch.tensor([0, 70, 200]).int()
    return _all(
        [
            _refusal(lambda: wl.hstu_attention(**_simple(k=on_host)), RuntimeError, ("k", "cpu")),
            _refusal(lambda: wl.hstu_attention(**_simple(cu_seqlens_q=lengths)), RuntimeError, ("cu_seqlens_q",)),
        ]
    )


def refused_misaligned() -> Verdict:
    odd_start = torch.zeros(200 * 2 * 64 + 1, dtype=torch.bfloat16, device=DEVICE)[1:].view(200, 2, 64)
    odd_stride = torch.zeros(200, 2 * 64 + 4, dtype=torch.bfloat16, device=DEVICE)[:, :128].unflatten(1, (2, 64))
    narrow = torch.zeros(200, 2, 60, dtype=torch.bfloat16, device=DEVICE)
    return _all(
        [
            _refusal(lambda: wl.hstu_attention(**_simple(v=odd_start)), ValueError, ("v", "16 bytes")),
            _refusal(lambda: wl.hstu_attention(**_simple(q=odd_stride)), ValueError, ("q", "16 bytes")),
            _refusal(lambda: wl.hstu_attention(**_simple(q=narrow, k=narrow)), ValueError, ("head dimension", "60")),
        ]
    )


def refused_device_index() -> Verdict:
    """A device that is not there: through the C ABI, as torch itself would refuse it earlier."""
    import gpu_raw_call

    code, message = gpu_raw_call.run_on_missing_device(torch.cuda.device_count())
    named = "device" in message and str(torch.cuda.device_count()) in message
    return _same(code == 1 and named, f"status {code}, message {message!r}")


SPECIAL: dict[str, Callable[[], Verdict]] = {name: globals()[name.replace("-", "_")] for name in SPECIAL_CHECKS}
