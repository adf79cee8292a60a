"""The tracer's marks in the Hopper kernels of attention and products on a GPU (docs/tracer.md).

They change no result, every role and every product has some, in the order that the kernel's barriers promise, a full
strip counts what it loses, and the kernel takes hardly longer. On a GPU without these kernels every check passes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from gpu_cases import PRODUCT_TRACES, TRACES, Problem, Trace
from gpu_raw_call import pack
from gpu_reference import Verdict
from warploom import _layout, _library, _matmul

LIMIT_PERCENT = 2.0  # by which one CTA's recording may slow a kernel down
ROUNDS = 30
SMALL_CAPACITY = 50
BATCH, LENGTH, HEADS = 8, 4096, 4


def problem_of(trace: Trace) -> Problem:
    """The standard problem: causal, in bfloat16."""
    return Problem(
        "trace", slots_q=(LENGTH,) * BATCH, heads=HEADS, dim=trace.dim, value_dim=trace.dim, softmax=trace.softmax
    )


def tensors_of(problem: Problem) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shape = (sum(problem.slots_q), problem.heads, problem.dim)
    cumulative = torch.tensor([0, *problem.slots_q], device="cuda").cumsum(0).int()
    made = {name: torch.randn(shape, device="cuda").bfloat16() for name in ("q", "k", "v", "dout")}
    made |= {name: torch.empty(shape, device="cuda", dtype=torch.bfloat16) for name in ("out", "dq", "dk", "dv")}
    made |= {"cu_q": cumulative, "cu_k": cumulative.clone()}
    return made | ({"lse": torch.empty((problem.heads, shape[0]), device="cuda")} if problem.softmax else {})


def answer_of(call: bytes, what: str = "attention", **request: Any) -> Any:
    return _library.json_text(f"warploom_trace_{what}", call, json.dumps(request).encode())


def run_call(call: bytes) -> None:
    _library.check(_library.library.warploom_run(call))
    torch.cuda.synchronize()


def faults_of(lanes: tuple[str, ...], answer: Any) -> list[str]:
    """What a trace of all marks must hold."""
    faults = list(answer["order"]["violations"])
    if answer["order"]["checked"] < 100:
        faults.append(f"only {answer['order']['checked']} pairs of marks to check")
    if answer["lost"] != 0:
        faults.append(f"{answer['lost']} marks lost")
    empty = [name for name in lanes if not answer["busy"].get(name)]
    if empty:
        faults.append(f"nothing on the lanes {', '.join(empty)}")
    return faults


def check(trace: Trace) -> tuple[list[str], float]:
    """(faults, slow-down in percent)."""
    tensors = tensors_of(problem_of(trace))
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    forward = pack(problem_of(trace), addresses)
    call = forward
    if trace.backward:
        call = pack(problem_of(trace), addresses, backward=True, deterministic=trace.deterministic)
    run_call(forward)
    run_call(call)
    names = trace.results
    plain = {name: tensors[name].clone() for name in names}
    for name in names:
        tensors[name].fill_(float("nan"))
    answer = answer_of(call, kernel=trace.kernel, rounds=ROUNDS, compare=True)
    timed = answer if trace.timed in ("steps", "") else answer_of(call, detail=trace.timed, rounds=ROUNDS)
    faults = [f"{name} differs when traced" for name in names if not torch.equal(tensors[name], plain[name])]
    faults += faults_of(trace.lanes, answer)
    small = answer_of(call, kernel=trace.kernel, capacity=SMALL_CAPACITY)
    if small["lost"] == 0 or not any("marks were lost" in note for note in small["notes"]):
        faults.append("a strip of 50 marks lost none, or said nothing of it")
    return faults + list(small["order"]["violations"]), float(timed["timing"]["slow_down_percent"])


def check_product(sizes: tuple[int, int, int]) -> tuple[list[str], float]:
    rows, columns, depth = sizes
    a, b = (torch.randn(n, depth, device="cuda", dtype=torch.bfloat16) for n in (rows, columns))
    out = torch.empty(rows, columns, device="cuda", dtype=torch.bfloat16)
    matrices: list[Any] = [a.data_ptr(), 0, depth, b.data_ptr(), 0, depth, 0, 0, 0, out.data_ptr(), 0, columns]
    matrices += [0, 1.0, 0.0, 0, 0]
    call = _matmul._pack(_layout.BFLOAT16, _layout.BFLOAT16, 0, 0, 0, (1, rows, columns, depth), matrices)
    _library.check(_library.library.warploom_gemm_run(call))
    torch.cuda.synchronize()
    plain = out.clone()
    out.fill_(float("nan"))
    answer = answer_of(call, "gemm", rounds=ROUNDS, compare=True)
    faults = [] if torch.equal(out, plain) else ["the result differs when traced"]
    faults += faults_of((), answer)
    small = answer_of(call, "gemm", capacity=SMALL_CAPACITY)
    if small["marks"] + small["lost"] != answer["marks"]:
        faults.append(
            f"{small['marks']} marks and {small['lost']} lost ones are not {answer['marks']} of a large buffer"
        )
    return faults + list(small["order"]["violations"]), float(answer["timing"]["slow_down_percent"])


def run(name: str) -> Verdict:
    if torch.cuda.get_device_capability() != (9, 0):
        return Verdict(True, 0.0, LIMIT_PERCENT)
    faults, percent = check_product(PRODUCT_TRACES[name]) if name in PRODUCT_TRACES else check(TRACES[name])
    # A product's CTAs have a fixed share of the work, so that the one that records ends later: that is not judged.
    limit = LIMIT_PERCENT if name in TRACES and TRACES[name].timed != "" else 0.0
    if limit > 0 and percent > limit:
        faults.append(f"{percent:.2f} % slower with marks")
    return Verdict(not faults, max(0.0, percent), limit, "; ".join(faults))
