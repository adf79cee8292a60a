"""Benchmarks of one GPU: ours and the peers, interleaved in rounds, on random data that does not fit the L2 cache.

Times are CUDA events around each call, queued behind a busy kernel so that launches from Python leave no gaps. Work
is counted as 4 * sum(L^2) * H * D, half of it under a causal mask (contexts and targets included), whatever is
skipped.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from typing import Any

import gpu_gemm
import torch
import warploom as wl
from gpu_cases import BENCHMARKS, DECODES, Benchmark, Decode
from gpu_report import Record
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ROUNDS = 3
CALLS = 24  # of each implementation and round
ROTATED_BYTES = 512 << 20  # several times the L2 cache
BUSY_CYCLES = 20_000_000  # about 10 ms

Call = Callable[[int], Any]  # of the input set with this number


def lengths_of(benchmark: Benchmark) -> torch.Tensor:
    if benchmark.shortest is None:
        return torch.full((benchmark.batch,), benchmark.length)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(benchmark.shortest, benchmark.length + 1, (benchmark.batch,), generator=generator)


def measure(calls: dict[str, Call], sets: int, count: int = CALLS) -> dict[str, list[list[float]]]:
    """Milliseconds of every call, for each implementation a list of ROUNDS rounds."""
    for call in calls.values():
        for number in range(2 * sets):
            call(number % sets)
    torch.cuda.synchronize()
    times: dict[str, list[list[float]]] = {name: [] for name in calls}
    for round_number in range(ROUNDS):
        names = list(calls)
        for name in names[round_number % len(names) :] + names[: round_number % len(names)]:
            events = [
                (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
            ]
            torch.cuda._sleep(BUSY_CYCLES)
            for number, (begin, end) in enumerate(events):
                begin.record()
                calls[name](number % sets)
                end.record()
            torch.cuda.synchronize()
            times[name].append([begin.elapsed_time(end) for begin, end in events])
    return times


def peak_memory(call: Call) -> int:
    """Bytes that a call allocates at most, its result included."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call(0)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak


def present(calls: dict[str, Call]) -> tuple[dict[str, Call], dict[str, str]]:
    """Those that run here, and why the others do not. The first is ours and must run."""
    running: dict[str, Call] = {}
    left_out: dict[str, str] = {}
    for name, call in calls.items():
        try:
            call(0)
            torch.cuda.synchronize()
            running[name] = call
        except Exception as error:
            if not running:
                raise
            left_out[name] = f"{type(error).__name__}: {str(error)[:200]}"
    return running, left_out


def records(
    case: str,
    calls: dict[str, Call],
    sets: int,
    flops: float,
    moved: int,
    dtype: str = "bfloat16",
    backward: bool = False,
) -> list[Record]:
    calls, left_out = present(calls)
    memory = {name: peak_memory(call) for name, call in calls.items()}
    device = torch.cuda.get_device_name()
    made = []
    for name, rounds in measure(calls, sets, CALLS // 2 if backward else CALLS).items():
        for number, times in enumerate(rounds, 1):
            median = statistics.median(times)
            tenths = statistics.quantiles(times, n=10)
            made.append(
                {
                    "case": case,
                    "pass": "backward" if backward else "forward",
                    "implementation": name,
                    "device": device,
                    "dtype": dtype,
                    "median_ms": round(median, 5),
                    "spread_ms": round(tenths[-1] - tenths[0], 5),
                    "tflops": round(flops / median * 1e-9, 2),
                    "bytes": moved,
                    "peak_memory": memory[name],
                    "round": number,
                }
            )
    if left_out:
        made[0]["left_out"] = left_out
    return made


def bias_of(benchmark: Benchmark, lengths: torch.Tensor, generator: torch.Generator) -> tuple[Any, int]:
    """The case's bias, and how many of its bytes a call must read at least."""
    b = benchmark
    longest, total = int(lengths.max()), int(lengths.sum())
    if b.bias == "rab":
        values = torch.empty(b.batch, b.heads, longest, longest, dtype=torch.bfloat16, device="cuda")
        values.normal_(generator=generator)
        seen = float((lengths.double() ** 2).sum()) * b.heads * (0.5 if b.causal else 1.0)
        return wl.DenseBias(values, rows="k"), int(2 * seen)
    if b.bias == "rab-bucketed":
        tables = [torch.randn(b.heads, n, generator=generator, device="cuda") for n in (longest, 128)]
        # Half an hour between two actions, on average.
        steps = torch.rand(total, generator=generator, device="cuda").mul(3600).long()
        return wl.BucketedBias(*tables, steps.cumsum(0)), 8 * total
    return None, 0


def run_attention(benchmark: Benchmark) -> list[Record]:
    b = benchmark
    lengths = lengths_of(b)
    total, longest = int(lengths.sum()), int(lengths.max())
    cu_seqlens = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).int().cuda()
    tensor_bytes = total * b.heads * b.dim * 2
    sets = max(2, -(-ROTATED_BYTES // (4 * tensor_bytes)))
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (total, b.heads, b.dim)
    inputs = [
        [torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(3)] for _ in range(sets)
    ]
    counts: dict[str, Any] = {}
    if b.targets:
        targets = torch.randint(0, b.targets + 1, (b.batch,), generator=torch.Generator().manual_seed(0))
        counts = {"num_contexts": b.contexts, "num_targets": targets.int().cuda()}
    mask = wl.Mask(right=0, **counts) if b.causal else wl.Mask.full()
    attend = wl.softmax_attention if b.softmax else wl.hstu_attention
    bias, bias_bytes = bias_of(b, lengths, generator)

    def warploom(number: int) -> Any:
        return attend(*inputs[number], cu_seqlens, mask=mask, bias=bias, max_seqlen_q=longest, max_seqlen_k=longest)

    def without_bias(number: int) -> Any:
        return attend(*inputs[number], cu_seqlens, mask=mask, max_seqlen_q=longest, max_seqlen_k=longest)

    def with_mma_sync(number: int) -> Any:
        os.environ["WARPLOOM_KERNELS"] = "mma.sync"
        out = warploom(number)
        os.environ["WARPLOOM_KERNELS"] = "auto"
        return out

    calls: dict[str, Call] = {"warploom": warploom}
    if b.bias is not None:
        calls["warploom-no-bias"] = without_bias
    else:
        calls["warploom-mma"] = with_mma_sync
    if b.bias is None and b.shortest is None:
        dense = [[x.unflatten(0, (b.batch, b.length)).transpose(1, 2) for x in each] for each in inputs]

        def sdpa(backend: Any) -> Call:
            def call(number: int) -> Any:
                with sdpa_kernel(backend):
                    return scaled_dot_product_attention(*dense[number], is_causal=b.causal)

            return call

        calls |= {"fa2": sdpa(SDPBackend.FLASH_ATTENTION), "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}
    elif b.bias is None:

        def flash(number: int) -> Any:
            return torch.ops.aten._flash_attention_forward(
                *inputs[number], cu_seqlens, cu_seqlens, longest, longest, 0.0, b.causal, False, scale=b.dim**-0.5
            )

        calls["fa2"] = flash
    flops = 4.0 * float((lengths.double() ** 2).sum()) * b.heads * b.dim * (0.5 if b.causal else 1.0)
    return records(b.name, calls, sets, flops, 4 * tensor_bytes + bias_bytes)


def run_backward(benchmark: Benchmark) -> list[Record]:
    """Gradients of q, k, v and the bias; 2.5 times the work of the forward pass. Peers differentiate softmax attention.

    With a bias softmax's out and LSE are those without it, which costs the same."""
    b = benchmark
    lengths = lengths_of(b)
    total, longest = int(lengths.sum()), int(lengths.max())
    cu_seqlens = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).int().cuda()
    tensor_bytes = total * b.heads * b.dim * 2
    sets = max(2, -(-ROTATED_BYTES // (8 * tensor_bytes)))
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape = (total, b.heads, b.dim)
    inputs = [
        [torch.randn(shape, generator=generator, device="cuda").bfloat16() for _ in range(4)] for _ in range(sets)
    ]
    flash = [
        torch.ops.aten._flash_attention_forward(
            *each[:3], cu_seqlens, cu_seqlens, longest, longest, 0.0, b.causal, False, scale=b.dim**-0.5
        )
        for each in inputs
    ]
    counts: dict[str, Any] = {}
    if b.targets:
        targets = torch.randint(0, b.targets + 1, (b.batch,), generator=torch.Generator().manual_seed(0))
        counts = {"num_contexts": b.contexts, "num_targets": targets.int().cuda()}
    options: dict[str, Any] = {
        "mask": wl.Mask(right=0, **counts) if b.causal else wl.Mask.full(),
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
    }

    bias, bias_bytes = bias_of(b, lengths, generator)
    if isinstance(bias, wl.DenseBias):
        bias_bytes *= 2  # its gradient

    def ours(deterministic: bool, bias: Any = bias) -> Call:
        def call(number: int) -> Any:
            q, k, v, dout = inputs[number]
            given = {"bias": bias, "deterministic": deterministic, **options}
            if b.softmax:
                return wl.softmax_attention_backward(dout, q, k, v, *flash[number][:2], cu_seqlens, **given)
            return wl.hstu_attention_backward(dout, q, k, v, cu_seqlens, **given)

        return call

    def fa2(number: int) -> Any:
        q, k, v, dout = inputs[number]
        out, lse, *random_state = flash[number]
        return torch.ops.aten._flash_attention_backward(
            *(dout, q, k, v, out, lse, cu_seqlens, cu_seqlens, longest, longest, 0.0, b.causal, *random_state[:2]),
            scale=b.dim**-0.5,
        )

    calls: dict[str, Call] = {"warploom": ours(False), "warploom-deterministic": ours(True)}
    if b.bias is not None:
        calls["warploom-no-bias"] = ours(False, None)
    else:
        calls["fa2"] = fa2
    if b.bias is None and b.shortest is None:
        leaves = [
            [x.unflatten(0, (b.batch, b.length)).transpose(1, 2).detach().requires_grad_() for x in each[:3]]
            for each in inputs
        ]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            outs = [scaled_dot_product_attention(*each, is_causal=b.causal) for each in leaves]
        douts = [each[3].unflatten(0, (b.batch, b.length)).transpose(1, 2) for each in inputs]
        calls["cudnn"] = lambda number: torch.autograd.grad(
            outs[number], leaves[number], douts[number], retain_graph=True
        )
    flops = 10.0 * float((lengths.double() ** 2).sum()) * b.heads * b.dim * (0.5 if b.causal else 1.0)
    return records(b.name, calls, sets, flops, 8 * tensor_bytes + bias_bytes, backward=True)


def run_decode(case: Decode) -> list[Record]:
    c = case
    shapes = [(c.batch, c.queries, c.heads, c.dim), *[(c.batch, c.keys, c.key_heads, c.dim)] * 2]
    moved = 2 * (2 * math.prod(shapes[0]) + 2 * math.prod(shapes[1]))
    sets = max(2, -(-ROTATED_BYTES // moved))
    generator = torch.Generator(device="cuda").manual_seed(0)
    inputs = [
        [torch.empty(s, dtype=torch.bfloat16, device="cuda").normal_(generator=generator) for s in shapes]
        for _ in range(sets)
    ]
    attend = wl.softmax_attention if c.softmax else wl.hstu_attention

    def warploom(number: int) -> Any:
        return attend(*inputs[number], mask=wl.Mask.full())

    def unsplit(number: int) -> Any:
        os.environ["WARPLOOM_KERNELS"] = "unsplit"
        out = warploom(number)
        os.environ["WARPLOOM_KERNELS"] = "auto"
        return out

    calls: dict[str, Call] = {"warploom": warploom, "warploom-unsplit": unsplit}
    transposed = [[x.transpose(1, 2) for x in each] for each in inputs]
    for name, backend in (("fa2", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):

        def call(number: int, backend: Any = backend) -> Any:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(*transposed[number], enable_gqa=c.heads != c.key_heads)

        calls[name] = call
    return records(c.name, calls, sets, 4.0 * c.batch * c.queries * c.keys * c.heads * c.dim, moved)


def run_copy() -> list[Record]:
    """Bytes read plus bytes written."""
    size = 4 << 30
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return records("copy-4GiB", {"torch": lambda _: target.copy_(source)}, 1, 0.0, 2 * size, "uint8")


def run_gemm(name: str) -> list[Record]:
    calls, sets, flops, moved = gpu_gemm.benchmark(name, ROTATED_BYTES)
    dtype = str(gpu_gemm.DTYPES[gpu_gemm.BENCHMARKS[name].dtype]).removeprefix("torch.")
    return records(name, calls, sets, flops, moved, dtype)


def run(name: str) -> list[Record]:
    torch.cuda.empty_cache()
    if name in BENCHMARKS:
        return run_attention(BENCHMARKS[name])
    if name in DECODES:
        return run_decode(DECODES[name])
    if name.endswith("/backward"):
        return run_backward(BENCHMARKS[name.removesuffix("/backward")])
    if name in gpu_gemm.BENCHMARKS:
        return run_gemm(name)
    return {"copy-4GiB": run_copy}[name]()
