"""What is checked and measured on a GPU, as plain data: known without a GPU, without torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import gpu_gemm_cases
from gpu_report import (
    BACKWARD,
    FORWARD,
    FUNCTIONS,
    HOPPER_BACKWARD,
    HOPPER_FORWARD,
    HOST_FILES,
    ROOT,
    SPLIT,
    TRACER,
    Item,
)

# Lengths at the boundaries of tiles of 64 and 128 rows, empty sequences first, between and last.
# Ends the name of an entry that keeps to the mma.sync kernels.
MMA_ONLY = "@mma"
BOUNDARIES = (0, 1, 63, 64, 65, 127, 0, 128, 129, 191, 300, 0)


@dataclass(frozen=True)
class Problem:
    """One call of hstu_attention or softmax_attention; the symbols are those of docs/attention.md.

    divisor: a number, "rows" (a tensor) or None. max_seqlen: a number, "given" (the longest) or None. layout:
    "plain", "qkv" (thirds of one tensor), "gaps" (strides with gaps), "heads_first", "dense" or "dense_transposed".
    constant_score: every score is this number. extra_rows: rows after the last sequence. intervals: a row's number of
    them. bias: "dense", "packed", "position", "time" or "bucketed" (both tables); bias_masked: the share of stored
    entries that are -inf; bias_offset: elements by which stored ones miss the alignment of 16 bytes; bias_heads: 1 or
    None (all); bias_batch: a dense one for each sequence, else one for all; thresholds: own ones for time. score,
    mask_function: names of a user's functions in gpu_functions.py.
    """

    name: str
    slots_q: tuple[int, ...] = BOUNDARIES
    slots_k: tuple[int, ...] | None = None
    bfloat16: bool = True
    heads: int = 2
    key_heads: int | None = None
    dim: int = 64
    value_dim: int = 64
    used_q: tuple[int, ...] | int | None = None
    used_k: tuple[int, ...] | int | None = None
    left: int | None = None
    right: int | None = 0
    contexts: tuple[int, ...] | int | None = None
    targets: tuple[int, ...] | int | None = None
    group: int = 1
    from_history_end: bool = False
    intervals: int | None = None
    interval_heads: int = 1
    alpha: float | None = None
    divisor: float | str | None = None
    int64_lengths: bool = False
    max_seqlen: int | str | None = "given"
    layout: str = "plain"
    constant_score: float | None = None
    extra_rows: int = 0
    softmax: bool = False
    softcap: float | None = None
    bias: str | None = None
    bias_rows: str = "k"
    bias_heads: int | None = None
    bias_batch: bool = True
    bias_float32: bool = False
    bias_masked: float = 0.0
    bias_offset: int = 0
    bias_scaled: bool = True
    thresholds: bool = False
    time_span: int = 100_000  # largest step between neighbouring timestamps
    score: str | None = None
    mask_function: str | None = None

    @property
    def dtype(self) -> str:
        return "bf16" if self.bfloat16 else "fp16"


def _counts(most: int, lengths: tuple[int, ...] = BOUNDARIES, kept: int = 0) -> tuple[int, ...]:
    """A count for each sequence, different from its neighbours', at most what is left of its length after `kept`."""
    return tuple(
        max(0, min(length - min(kept, length), (most + 7 * b) % (most + 1) if b % 3 else most))
        for b, length in enumerate(lengths)
    )


CONTEXTS, TARGETS = _counts(4), _counts(64, kept=4)
USED_Q = (0, 1, 20, 64, 33, 100, 0, 0, 129, 150, 170, 0)
USED_K = (0, 1, 30, 64, 65, 100, 0, 0, 129, 170, 200, 0)
SHORT_Q = tuple(length // 3 for length in BOUNDARIES)  # delta-q: the last third of each sequence

MASKS: dict[str, dict[str, Any]] = {
    "full": {"right": None},
    "causal": {},
    "left": {"left": 70, "right": None},
    "right": {"right": 33},
    "window": {"left": 50, "right": 20},
    "window0": {"left": 0, "right": 0},
    "causal-window": {"left": 100},
    "contexts": {"contexts": CONTEXTS},
    "targets": {"targets": TARGETS},
    "target-groups": {"targets": TARGETS, "group": 5},
    "ctx-tgt": {"contexts": CONTEXTS, "targets": TARGETS},
    "ctx-tgt-window": {"contexts": CONTEXTS, "targets": TARGETS, "left": 40, "group": 3},
    "ctx-tgt-window-end": {"contexts": CONTEXTS, "targets": TARGETS, "left": 40, "group": 3, "from_history_end": True},
    "window0-end": {"targets": TARGETS, "left": 0, "group": 1000, "from_history_end": True},
    "all-targets": {"targets": BOUNDARIES, "group": 7},
    "all-contexts": {"contexts": BOUNDARIES},
    "one-for-all": {"slots_q": (0, 80, 200, 0, 65), "contexts": 3, "targets": 40},
}


def _mask_problems() -> list[Problem]:
    problems = []
    for n, (mask, options) in enumerate(MASKS.items()):
        base = Problem(f"mask-{mask}", bfloat16=n % 2 == 0, **options)
        problems.append(base)
        if "slots_q" not in options:
            problems.append(
                replace(base, name=f"mask-{mask}-delta-q", slots_q=SHORT_Q, slots_k=BOUNDARIES, bfloat16=n % 2 == 1)
            )
    for dim in (128, 256):  # other tiles
        for mask in ("full", "window", "ctx-tgt", "ctx-tgt-window-end"):
            problems.append(Problem(f"mask-{mask}-D{dim}", dim=dim, value_dim=dim, **MASKS[mask]))
    for count in range(6):
        for heads in (1, 2):
            dim = (64, 128, 256)[count % 3]
            problems.append(
                Problem(
                    f"intervals{count}-{'per-head' if heads > 1 else 'shared'}",
                    right=None,
                    intervals=count,
                    interval_heads=heads,
                    dim=dim,
                    value_dim=dim,
                    bfloat16=heads == 1,
                )
            )
    problems.append(
        Problem("intervals3-delta-q", slots_q=SHORT_Q, slots_k=BOUNDARIES, right=None, intervals=3, interval_heads=2)
    )
    return problems


def _dimension_problems() -> list[Problem]:
    """Every multiple of 8 up to 256 as D and as Dv, in two pairings and both types."""
    dims = range(8, 257, 8)
    problems = []
    for n, dim in enumerate(dims):
        value_dim = dims[(11 * n + 5) % 32]
        mask = MASKS["ctx-tgt" if n % 2 else "causal"]
        lengths: dict[str, Any] = {"slots_q": (1, 130, 67)} if n % 2 == 0 else {}
        problems.append(
            Problem(f"dims-D{dim}-Dv{value_dim}", dim=dim, value_dim=value_dim, bfloat16=n % 4 < 2, **lengths, **mask)
        )
        if n % 2 == 0:
            problems.append(
                Problem(f"dims-D{dim}-Dv{dim}", dim=dim, value_dim=dim, bfloat16=n % 4 >= 2, slots_q=(129, 1, 64))
            )
    return problems


def _other_problems() -> list[Problem]:
    long_k = (300, 1, 65, 128, 64, 300)
    used_q, used_k = USED_Q, USED_K
    problems = [
        Problem("empty-sequences", slots_q=(0, 0, 0)),
        Problem("empty-batch", slots_q=()),
        Problem("empty-batch-with-rows", slots_q=(), extra_rows=40),
        Problem("one-token", slots_q=(1,)),
        Problem("one-token-each", slots_q=(1,) * 100),
        Problem("long", slots_q=(4096, 7, 2500), dim=128, value_dim=128),
        Problem("decode", slots_q=(1,) * 6, slots_k=long_k),
        Problem("no-queries", slots_q=(0, 1, 0, 5), slots_k=(200, 64, 1, 129)),
        Problem("delta-q-full", slots_q=(5, 1, 65, 100, 64, 17), slots_k=long_k, right=None),
        Problem("used", used_q=used_q, used_k=used_k),
        Problem(
            "used-keys",
            slots_q=SHORT_Q,
            slots_k=BOUNDARIES,
            used_k=tuple((2 * x + 2) // 3 for x in BOUNDARIES),
            right=None,
        ),
        Problem("used-for-all", slots_q=(0, 90, 130, 64), used_q=50, used_k=60, targets=10),
        Problem("used-D128", dim=128, value_dim=128, bfloat16=False, used_q=used_q, used_k=used_k),
        Problem("used-intervals", used_q=used_q, used_k=used_k, right=None, intervals=2),
        Problem("extra-rows", extra_rows=333),
        # More work items than SMs, and more key tiles than a ring has slots.
        Problem("long-D256", slots_q=(3000, 1700, 130), heads=4, dim=256, value_dim=256),
        Problem("extra-rows-D256", extra_rows=77, dim=256, value_dim=256, bfloat16=False),
        Problem(
            "grouped-D256",
            slots_k=BOUNDARIES,
            used_q=USED_Q,
            used_k=USED_K,
            heads=4,
            key_heads=2,
            dim=256,
            value_dim=256,
        ),
        Problem(
            "divisor-rows-D192",
            slots_q=SHORT_Q,
            slots_k=BOUNDARIES,
            heads=4,
            key_heads=1,
            dim=192,
            value_dim=192,
            divisor="rows",
            extra_rows=9,
        ),
        Problem("divisor-number", divisor=37.5),
        Problem("divisor-negative", divisor=-3.0, bfloat16=False),
        Problem("divisor-rows", divisor="rows", extra_rows=9),
        Problem("alpha-negative", alpha=-0.3),
        Problem("alpha-0", alpha=0.0),
        Problem("alpha-large", alpha=3.0, bfloat16=False),
        Problem("grouped-heads", heads=8, key_heads=2, dim=128, value_dim=128),
        Problem("one-key-head", heads=4, key_heads=1, bfloat16=False),
        Problem("many-heads", heads=40, slots_q=(70, 3), dim=32, value_dim=32),
        Problem("int64-lengths", int64_lengths=True, slots_q=SHORT_Q, slots_k=BOUNDARIES),
        Problem("max-seqlen-read", max_seqlen=None),
        Problem("max-seqlen-1", max_seqlen=1, divisor=10.0),
        Problem("max-seqlen-200", max_seqlen=200, divisor=10.0, contexts=CONTEXTS, targets=TARGETS),
        Problem("max-seqlen-huge", max_seqlen=1_000_000, divisor=10.0, slots_q=(70, 300)),
        Problem("layout-qkv", layout="qkv"),
        Problem("layout-gaps", layout="gaps", dim=40, value_dim=72),
        Problem("layout-heads-first", layout="heads_first", dim=128, value_dim=128),
        Problem("dense", layout="dense", slots_q=(150,) * 3),
        Problem("dense-delta-q", layout="dense", slots_q=(33,) * 3, slots_k=(150,) * 3, bfloat16=False),
        Problem(
            "dense-transposed",
            layout="dense_transposed",
            slots_q=(130,) * 3,
            dim=128,
            value_dim=64,
            targets=(5, 0, 64),
            contexts=2,
        ),
        Problem("dense-used", layout="dense", slots_q=(130,) * 3, used_q=(0, 130, 77), used_k=(0, 130, 80)),
        Problem("dense-intervals", layout="dense", slots_q=(70,) * 2, right=None, intervals=3, interval_heads=2),
    ]
    for z in (4.0, -1.0, -4.0, -6.0, -8.0, -12.0, -15.0, -20.0, -25.0):
        problems.append(Problem(f"tail-bf16{z:+g}", constant_score=z, divisor=1.0))
        if z >= -12:
            problems.append(Problem(f"tail-fp16{z:+g}", constant_score=z, divisor=1.0, bfloat16=False))
    # Scores that a 16-bit number cannot hold, while the result can.
    problems += [
        Problem("scores-beyond-fp16", constant_score=30000.0, divisor=1e6, bfloat16=False, slots_q=(70,)),
        Problem("activations-beyond-fp16", constant_score=200000.0, divisor=1e6, bfloat16=False, slots_q=(70,)),
        Problem("scores-far-beyond-fp16", constant_score=-4e8, divisor=1e6, bfloat16=False, slots_q=(70,)),
    ]
    return problems


def _softmax_problems() -> list[Problem]:
    """The suite above with softmax, and what only softmax has."""
    kept = [p for p in (*_mask_problems(), *_other_problems()) if "divisor" not in p.name and p.constant_score is None]
    problems = [replace(p, name=f"softmax-{p.name}", softmax=True, divisor=None) for p in kept]
    problems += [
        replace(p, name=f"softmax-{p.name}", softmax=True) for n, p in enumerate(_dimension_problems()) if n % 3 == 0
    ]
    more_q: dict[str, Any] = {"slots_q": (70, 1, 200, 0, 5, 64), "slots_k": (30, 0, 65, 10, 5, 63)}
    problems += [
        Problem("more-queries-causal", **more_q),
        Problem("more-queries-full", right=None, **more_q),
        Problem("more-queries-window", left=20, right=3, **more_q),
        Problem("softcap", softcap=5.0),
        Problem("softcap-D128", softcap=0.7, dim=128, value_dim=128, bfloat16=False, right=None),
        Problem("softcap-D256", softcap=2.0, dim=256, value_dim=256),
        Problem("softcap-large", softcap=1000.0, alpha=2.0),
        Problem("softcap-alpha-negative", softcap=3.0, alpha=-1.0),
        Problem("alpha-huge", alpha=400.0),
        Problem("alpha-huge-fp16", alpha=400.0, bfloat16=False, right=None),
        Problem("alpha-tiny", alpha=1e-20),
        Problem("long-full", slots_q=(3000, 5), right=None, dim=128, value_dim=128),
    ]
    return [replace(p, softmax=True, name=p.name if p.softmax else f"softmax-{p.name}") for p in problems]


BIASES: dict[str, dict[str, Any]] = {
    "dense": {"bias": "dense"},
    "dense-q": {"bias": "dense", "bias_rows": "q"},
    "dense-broadcast": {"bias": "dense", "bias_heads": 1, "bias_batch": False},
    "dense-one-head": {"bias": "dense", "bias_heads": 1},
    "dense-float32": {"bias": "dense", "bias_float32": True},
    "dense-masked": {"bias": "dense", "bias_masked": 0.3},
    "dense-all-masked": {"bias": "dense", "bias_masked": 1.0},
    "dense-misaligned": {"bias": "dense", "bias_offset": 1},
    "dense-float32-misaligned": {"bias": "dense", "bias_offset": 3, "bias_float32": True},
    "packed": {"bias": "packed"},
    "packed-q": {"bias": "packed", "bias_rows": "q"},
    "packed-float32": {"bias": "packed", "bias_float32": True, "bias_heads": 1},
    "packed-masked": {"bias": "packed", "bias_masked": 0.3, "bias_rows": "q"},
    "position": {"bias": "position"},
    "time": {"bias": "time"},
    "time-thresholds": {"bias": "time", "thresholds": True},
    "bucketed": {"bias": "bucketed"},
    "bucketed-one-head": {"bias": "bucketed", "bias_heads": 1},
    "bucketed-close": {"bias": "bucketed", "time_span": 3},
    "bucketed-far": {"bias": "bucketed", "time_span": 10**12},
    "bucketed-masked": {"bias": "bucketed", "bias_masked": 0.2},
}


def _bias_problems() -> list[Problem]:
    """Every form of bias with both operators: under a mask with everything, with fewer queries, and at other sizes."""
    problems = []
    for n, (form, options) in enumerate(BIASES.items()):
        for softmax in (False, True):
            operator = "softmax-" if softmax else ""
            odd = (n + softmax) % 2 == 1
            base = Problem(f"{operator}bias-{form}", softmax=softmax, bfloat16=not odd, **MASKS["ctx-tgt"], **options)
            problems.append(base)
            problems.append(
                replace(
                    base,
                    name=f"{base.name}-delta-q",
                    slots_q=SHORT_Q,
                    slots_k=BOUNDARIES,
                    bfloat16=odd,
                    contexts=None,
                    targets=None,
                    right=None if odd else 0,
                )
            )
            dim = (128, 256, 40)[(n + softmax) % 3]
            lengths = (130, 1, 67)
            problems.append(
                replace(
                    base,
                    name=f"{base.name}-D{dim}",
                    dim=dim,
                    value_dim=dim,
                    slots_q=lengths,
                    contexts=None,
                    targets=None,
                    left=100 if odd else None,
                )
            )
    dense: dict[str, Any] = {"bias": "dense"}
    odd_wide: dict[str, Any] = {"slots_q": (301, 1, 129), "max_seqlen": 301, "dim": 200, "value_dim": 256}
    problems += [
        Problem("bias-dense-not-scaled", bias_scaled=False, alpha=0.3, **dense),
        Problem("bias-dense-alpha-negative", alpha=-0.5, bias_masked=0.2, **dense),
        Problem("bias-dense-alpha-0", alpha=0.0, bias_masked=0.2, bias_scaled=False, **dense),
        Problem("softmax-bias-dense-softcap", softmax=True, softcap=2.0, bias_masked=0.2, **dense),
        Problem("softmax-bias-dense-alpha-0", softmax=True, alpha=0.0, bias_masked=0.2, **dense),
        Problem("softmax-bias-dense-alpha-negative", softmax=True, alpha=-0.5, **dense),
        Problem("bias-dense-layout", layout="dense", slots_q=(150,) * 3, **dense),
        Problem("bias-dense-max-seqlen-200", max_seqlen=200, divisor=10.0, **dense),
        Problem("bias-dense-intervals", right=None, intervals=3, interval_heads=2, **dense),
        Problem("softmax-bias-bucketed-intervals", softmax=True, right=None, intervals=3, bias="bucketed"),
        Problem("bias-packed-used", bias="packed", used_q=USED_Q, used_k=USED_K),
        Problem("softmax-bias-packed-used", softmax=True, bias="packed", bias_rows="q", used_q=USED_Q, used_k=USED_K),
        Problem("bias-bucketed-used", bias="bucketed", used_q=USED_Q, used_k=USED_K),
        Problem("bias-bucketed-layout", layout="dense", slots_q=(70,) * 3, slots_k=(150,) * 3, bias="bucketed"),
        Problem("bias-packed-layout", layout="dense", slots_q=(70,) * 3, slots_k=(150,) * 3, bias="packed"),
        Problem(
            "softmax-bias-dense-more-queries", softmax=True, slots_q=(70, 130), slots_k=(30, 65), right=None, **dense
        ),
        # Of wide heads the backward kernels read R from memory: rows that begin anywhere, and lists.
        Problem("softmax-bias-dense-odd-D200", softmax=True, right=None, used_q=(300, 1, 90), **odd_wide, **dense),
        Problem("bias-dense-intervals-D256", right=None, intervals=3, **{**odd_wide, "dim": 256}, **dense),
        Problem("bias-dense-long", slots_q=(2100, 7), dim=128, value_dim=128, heads=2, **dense),
        Problem("bias-bucketed-long", slots_q=(2100, 7), dim=128, value_dim=128, bias="bucketed"),
        Problem("softmax-bias-packed-long", softmax=True, slots_q=(7, 2100), dim=64, bias="packed"),
        Problem("bias-packed-many", slots_q=tuple(n % 7 for n in range(900)), bias="packed"),
        Problem("softmax-bias-dense-grouped", softmax=True, heads=8, key_heads=2, dim=128, value_dim=128, **dense),
        Problem("softmax-bias-bucketed-grouped", softmax=True, heads=8, key_heads=2, bias="bucketed"),
    ]
    return problems + _whole_bias_problems()


def _whole_bias_problems() -> list[Problem]:
    """A dense bias whose gradient, too, has rows of whole 16 bytes, as the Hopper backward kernel asks for."""
    hstu: dict[str, Any] = {"bias": "dense", "max_seqlen": 304, "divisor": 10.0}
    softmax: dict[str, Any] = {"bias": "dense", "max_seqlen": 304, "softmax": True}
    wide: dict[str, Any] = {"dim": 128, "value_dim": 128, "slots_q": (304, 1, 129, 192)}
    widest: dict[str, Any] = {**wide, "dim": 256, "value_dim": 256}
    short: dict[str, Any] = {"slots_q": SHORT_Q, "slots_k": BOUNDARIES}
    return [
        Problem("bias-whole", **MASKS["ctx-tgt"], **hstu),
        Problem("bias-whole-q-delta-q", bias_rows="q", bias_masked=0.3, **short, **hstu),
        Problem("bias-whole-window-D128", left=100, heads=4, key_heads=2, **wide, **hstu),
        Problem("bias-whole-window-D256", left=100, heads=4, key_heads=2, bias_masked=0.1, **widest, **hstu),
        Problem("bias-whole-used", used_q=USED_Q, used_k=USED_K, alpha=0.3, bias_scaled=False, **hstu),
        Problem("bias-whole-broadcast", bias_heads=1, bias_batch=False, **hstu),
        Problem("softmax-bias-whole-delta-q", left=100, **short, **softmax),
        Problem("softmax-bias-whole-masked-D128", bias_masked=0.3, right=None, **wide, **softmax),
        Problem("softmax-bias-whole-intervals", right=None, intervals=3, interval_heads=2, **softmax),
        Problem(
            "softmax-bias-whole-more-queries", slots_q=(70, 136, 300), slots_k=(30, 65, 200), right=None, **softmax
        ),
    ]


def _split_problems() -> list[Problem]:
    """Short queries against long keys. Chunks have at least 256 keys and, with up to 16 rows (of all heads that share a
    key head), another kernel than with more."""
    long_k = (5000, 1, 257, 0, 1024, 9001, 64)

    def queries(most: int) -> tuple[int, ...]:
        return tuple(min(most, keys) for keys in long_k)

    grouped: dict[str, Any] = {"heads": 8, "key_heads": 2, "dim": 128, "value_dim": 128}
    mixed: dict[str, Any] = {
        "slots_q": (1, 300, 17, 64, 65, 0, 3),
        "slots_k": (4000, 700, 257, 3000, 65, 900, 100),
    }
    used_k = (4000, 1, 200, 0, 0, 8000, 64)
    problems = [
        *(Problem(f"L{n}", slots_q=queries(n), slots_k=long_k, bfloat16=n != 17) for n in (1, 2, 17, 64)),
        *(
            Problem(f"L{n}-grouped", slots_q=queries(n), slots_k=long_k, bfloat16=n != 2, **grouped)
            for n in (1, 2, 17, 64)
        ),
        Problem("one-key-head", slots_q=queries(3), slots_k=long_k, heads=40, key_heads=1, dim=32, value_dim=32),
        Problem("full", slots_q=queries(33), slots_k=long_k, right=None, bfloat16=False, **grouped),
        Problem("window", slots_q=queries(33), slots_k=long_k, left=700, **grouped),
        Problem("window-few-rows", slots_q=queries(4), slots_k=long_k, left=300, right=0),
        Problem(
            "ctx-tgt",
            slots_q=queries(40),
            slots_k=long_k,
            contexts=(3, 0, 9, 0, 1, 0, 2),
            targets=(30, 1, 0, 0, 40, 64, 5),
        ),
        Problem("ctx-tgt-window", slots_q=queries(4), slots_k=long_k, targets=(3, 1, 0, 0, 4, 2, 4), group=2, left=600),
        Problem("used", slots_q=queries(9), slots_k=long_k, used_q=(9, 0, 5, 0, 0, 8, 9), used_k=used_k, **grouped),
        Problem("empty-splits", slots_q=queries(9), slots_k=long_k, max_seqlen=1_000_000, divisor=7.0, extra_rows=11),
        Problem("max-seqlen-1", slots_q=queries(20), slots_k=long_k, max_seqlen=1, divisor=10.0, **grouped),
        Problem("max-seqlen-read", slots_q=queries(20), slots_k=long_k, max_seqlen=None, int64_lengths=True),
        Problem("extra-rows", slots_q=queries(5), slots_k=long_k, extra_rows=70, divisor="rows"),
        Problem("mixed", **mixed),
        Problem("mixed-grouped", **mixed, **grouped),
        Problem("mixed-intervals", **mixed, right=None, intervals=3),
        Problem("intervals-grouped", slots_q=queries(5), slots_k=long_k, right=None, intervals=2, **grouped),
        Problem("intervals-per-head", slots_q=queries(40), slots_k=long_k, right=None, intervals=3, interval_heads=2),
        *(
            Problem(f"D{d}-Dv{dv}-L{n}", slots_q=queries(n), slots_k=long_k, dim=d, value_dim=dv, bfloat16=n == 2)
            for d, dv, n in (
                (40, 72, 30),
                (192, 128, 3),
                (256, 256, 2),
                (256, 248, 64),
            )
        ),
        Problem("dense", layout="dense", slots_q=(2,) * 3, slots_k=(2000,) * 3),
        Problem("dense-transposed", layout="dense_transposed", slots_q=(17,) * 2, slots_k=(3001,) * 2, **grouped),
    ]
    scores = [
        *(Problem(f"tail{z:+g}", constant_score=z, divisor=1.0, slots_q=(3,), slots_k=(1000,)) for z in (-4.0, -20.0)),
        Problem("scores-beyond-fp16", constant_score=2e5, divisor=1e6, bfloat16=False, slots_q=(20,), slots_k=(900,)),
        Problem(
            "scores-beyond-fp16-few", constant_score=2e5, divisor=1e6, bfloat16=False, slots_q=(2,), slots_k=(900,)
        ),
    ]
    biased = [
        Problem(
            f"bias-{form}", slots_q=(n, 1, n, 0, n), slots_k=(2000, 1, 257, 70, 900), bfloat16=n == 2, **BIASES[form]
        )
        for form, n in (
            ("dense-q", 2),
            ("packed", 33),
            ("dense-float32", 9),
            ("bucketed", 40),
        )
    ]
    kept = [p for p in problems if p.divisor is None][1::2]
    softmax = [replace(p, name=f"softmax-{p.name}", softmax=True) for p in (*kept, *biased)]
    softmax += [
        Problem("softmax-more-queries", softmax=True, slots_q=(64, 10, 5), slots_k=(30, 5, 0), right=None),
        Problem("softmax-softcap", softmax=True, slots_q=queries(9), slots_k=long_k, softcap=3.0, **grouped),
        Problem("softmax-alpha-huge", softmax=True, slots_q=queries(3), slots_k=long_k, alpha=400.0, bfloat16=False),
    ]
    return [replace(p, name=f"split-{p.name}") for p in (*problems, *scores, *biased, *softmax)]


def _function_problems() -> list[Problem]:
    """Users' score functions on the kernels that take them, with the forms of mask and bias that those tell apart;
    users' masks on both forward kernels. Each is a few kernels of its own to compile: few problems, each for several
    things."""
    wide: dict[str, Any] = {"dim": 128, "value_dim": 128}
    problems = [
        Problem("rational", score="rational", **MASKS["ctx-tgt-window"]),
        Problem("all-fp16", score="all", dim=40, value_dim=72, bfloat16=False, alpha=1.5),
        Problem("never-0", score="never-0", slots_q=SHORT_Q, slots_k=BOUNDARIES, right=None, divisor="rows", **wide),
        Problem("relu2", score="relu2", used_q=USED_Q, used_k=USED_K, extra_rows=9, dim=256, value_dim=256),
        Problem("beyond-fp16", score="relu2", constant_score=400.0, divisor=1e6, bfloat16=False, slots_q=(70,)),
        Problem("dense-bias", score="capped", bias="dense", bias_masked=0.2, **MASKS["ctx-tgt-window"]),
        Problem("packed-bias", score="never-0", bias="packed", bias_float32=True, bfloat16=False, bias_scaled=False),
        Problem("one-bias", score="swish", bias="dense", bias_heads=1, bias_masked=0.1, bias_offset=1),
        Problem("bucketed-bias", score="never-0", bias="bucketed", slots_q=(130, 1, 67), **wide),
        Problem("blocks", mask_function="blocks", right=None, **wide),
        Problem("anchored", mask_function="anchored", right=None, contexts=CONTEXTS, targets=TARGETS, softmax=True),
        Problem("both", score="capped", mask_function="by-head", right=None, layout="dense", slots_q=(150,) * 3),
    ]
    return [replace(p, name=f"function-{p.name}") for p in problems]


FUNCTION_PROBLEMS = {problem.name: problem for problem in _function_problems()}
SPLIT_PROBLEMS = {problem.name: problem for problem in _split_problems()}
PROBLEMS = {
    problem.name: problem
    for problem in (
        *_dimension_problems(),
        *_mask_problems(),
        *_other_problems(),
        *_softmax_problems(),
        *_bias_problems(),
        *SPLIT_PROBLEMS.values(),
        *FUNCTION_PROBLEMS.values(),
    )
}

# Functions of gpu_checks.py that take no problem.
SPECIAL_CHECKS = (
    "two-billion-elements",
    "nan-stays-in-its-sequence",
    "result-is-independent-of-the-batch",
    "repeated-bitwise",
    "torch-compile",
    "opcheck",
    "side-stream",
    "graph-capture",
    "numpy-like-arrays",
    "autograd-forward",
    "check-inputs",
    "refused-float32",
    "bias-does-not-leak",
    "softmax-nan",
    "softmax-graph-capture",
    "softmax-torch-compile",
    "softmax-opcheck",
    "refused-mixed-devices",
    "refused-misaligned",
    "refused-device-index",
)

# The same of gpu_split_checks.py.
SPLIT_CHECKS = ("independent-of-the-batch", "repeated-bitwise", "graph-capture", "nan-stays-in-its-sequence", "explain")

# The same of gpu_function_checks.py.
FUNCTION_CHECKS = ("autograd", "opcheck", "torch-compile", "graph-capture", "parameters", "messages")


@dataclass(frozen=True)
class Trace:
    """What gpu_trace_checks.py traces: an operator's pass, or a kernel of it (its first one with marks where none is
    named). lanes: those that must show something. results: what must be the same, bit for bit, with marks."""

    dim: int
    lanes: tuple[str, ...]
    results: tuple[str, ...]
    softmax: bool = False
    backward: bool = False
    kernel: str = ""
    deterministic: bool = False
    timed: str = "steps"  # the marks with which the kernel may not be slower than the limit; "": that is not judged


def _lanes(products: str, *rings: str, consumers: int = 2) -> tuple[str, ...]:
    names = [*products.split(), "TC", "FMA"]
    return tuple(f"{name}[{c}]" for name in names for c in range(consumers)) + tuple(f"{ring}[0]" for ring in rings)


# dQ is summed in an order that differs from run to run where one kernel computes all gradients.
TRACES = {
    "forward-hstu-D128": Trace(128, _lanes("S PV", "K", "V", "Q"), ("out",), timed=""),
    "forward-softmax-D64": Trace(
        64, _lanes("S PV", "K", "V", "Q", consumers=4), ("out", "lse"), softmax=True, timed=""
    ),
    "backward-hstu-D128": Trace(128, _lanes("S dP dV dK dQ", "Q dO", "K V"), ("dk", "dv"), backward=True),
    "backward-softmax-D64": Trace(
        64, _lanes("S dP dV dK dQ", "Q dO", "K V"), ("dk", "dv"), softmax=True, backward=True
    ),
    "backward-hstu-D256": Trace(
        256,
        ("S[0]", "dP[0]", "dV[0]", "dK[1]", "dQ[1]", "Q[0]", "dO[0]", "K[0]", "V[0]"),
        ("dk", "dv"),
        backward=True,
        timed="",
    ),
    "backward-hstu-D256-keys": Trace(
        256,
        _lanes("S dP", "Q", "dO", "K", "V"),
        ("dq", "dk", "dv"),
        backward=True,
        kernel="keys",
        deterministic=True,
        timed="",
    ),
    "backward-hstu-D256-dq": Trace(
        256,
        _lanes("S dP dQ", "K", "V", "Q dO of 0"),
        ("dq", "dk", "dv"),
        backward=True,
        kernel="dq",
        deterministic=True,
    ),
}
# Rows, columns and depth of traced products: tiles that consumers share, and whole tiles in turns.
PRODUCT_TRACES = {"gemm-cooperative": (8192, 8192, 8192), "gemm-ping-pong": (65536, 2048, 512)}

# The same of gpu_torch_checks.py.
TORCH_CHECKS = (
    "autograd",
    "softmax-opcheck",
    "backward-side-stream",
    "graph-of-a-step",
    "fresh-thread",
)

# The same of gpu_backward_checks.py.
BACKWARD_SPECIAL_CHECKS = (
    "autograd",
    "opcheck",
    "torch-compile",
    "graph-capture",
    "sums-on-two-streams",
    "nan-stays-in-its-sequence",
    "independent-of-the-batch",
    "bias-autograd",
    "bias-does-not-leak",
    "whole-bias-does-not-leak",
    "bias-graph-capture",
    "bias-large-table",
)

# What gpu_backward_checks.py differentiates.
# Of those with a bias one or two for each way through the kernels.
BACKWARD_BIASES = (
    *("bias-dense", "softmax-bias-dense-delta-q", "bias-dense-misaligned", "bias-dense-broadcast", "bias-dense-D128"),
    *("softmax-bias-dense-one-head", "softmax-bias-dense-masked", "bias-dense-float32", "softmax-bias-dense-grouped"),
    *("bias-dense-intervals", "softmax-bias-dense-more-queries", "bias-dense-layout", "softmax-bias-dense-softcap"),
    *("softmax-bias-packed", "bias-packed-q-delta-q", "bias-packed-many", "bias-packed-used", "bias-packed-layout"),
    *("bias-bucketed", "softmax-bias-bucketed-delta-q", "bias-time-thresholds", "bias-bucketed-one-head"),
    *("bias-bucketed-masked", "bias-bucketed-used", "bias-bucketed-far", "bias-bucketed-close"),
    *("bias-bucketed-long", "softmax-bias-bucketed-grouped", "softmax-bias-position", "bias-bucketed-D256"),
    *("softmax-bias-dense-float32-misaligned", "softmax-bias-packed-float32", "bias-packed-masked"),
    *("softmax-bias-dense-one-head-D256", "softmax-bias-packed-D256", "bias-packed-q-D256"),
    *("softmax-bias-dense-odd-D200", "bias-dense-intervals-D256"),
)
BACKWARD_PROBLEMS = {
    name: problem
    for name, problem in PROBLEMS.items()
    if name not in SPLIT_PROBLEMS
    and (problem.bias is None or name in (*BACKWARD_BIASES, *FUNCTION_PROBLEMS) or "bias-whole" in name)
}
# What of that keeps to mma.sync once more, by the beginnings of names. Deterministic calls and wide heads do anyway.
BACKWARD_BOTH_WAYS = (
    *("mask-", "softmax-mask-", "graph-capture"),
    *("bias-dense-misaligned", "bias-dense-float32", "softmax-bias-packed", "bias-packed-q-delta-q", "bias-dense-D128"),
)

# Functions of gpu_device_tests.py -> the file of kernels they run.
DEVICE_TESTS = {
    "mma-products": "tests/device/mma_test.cu",
    "scores-are-operands": "tests/device/mma_test.cu",
    "ldmatrix": "tests/device/copies_test.cu",
    "cp-async-zero-fill": "tests/device/copies_test.cu",
    "cp-async-delayed-producers": "tests/device/copies_test.cu",
    "cp-async-oldest-groups": "tests/device/copies_test.cu",
    "tile-round-trip": "tests/device/copies_test.cu",
    "registers-to-global": "tests/device/copies_test.cu",
    "pack-rounding": "tests/device/conversion_test.cu",
    "silu-accuracy": "tests/device/conversion_test.cu",
    "tanh-limit": "tests/device/conversion_test.cu",
    "activation-errors": "kernels/laboratory/activations.cu",
    "interval-bits": "tests/device/visibility_test.cu",
    "mask-rows": "tests/device/visibility_test.cu",
    "tile-walks": "tests/device/visibility_test.cu",
    "wgmma-products": "tests/device/wgmma_test.cu",
    "tma-loads": "tests/device/hopper_memory_test.cu",
    "tma-stores": "tests/device/hopper_memory_test.cu",
    "bulk-copies": "tests/device/hopper_memory_test.cu",
    "mbarrier-phases": "tests/device/hopper_memory_test.cu",
    "named-barriers": "tests/device/hopper_memory_test.cu",
    "register-budget": "tests/device/hopper_memory_test.cu",
    "stmatrix": "tests/device/hopper_memory_test.cu",
    "cluster-multicast": "tests/device/hopper_memory_test.cu",
    "election-and-grid-wait": "tests/device/hopper_memory_test.cu",
    "ring-copies": "tests/device/ring_copies_test.cu",
    "own-pipeline": "examples/cpp/own_pipeline/own_pipeline.cu",
}

SANITIZER_TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Small calls for compute-sanitizer; "copies" runs the device tests of the tile layer.
SANITIZER_PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("hstu-D64-ctx-tgt", slots_q=(0, 65, 130), contexts=(0, 2, 4), targets=(0, 9, 64), group=3),
        Problem(
            "hstu-D40-Dv72-delta-q",
            slots_q=(3, 66),
            slots_k=(129, 70),
            dim=40,
            value_dim=72,
            bfloat16=False,
            extra_rows=5,
        ),
        Problem(
            "hstu-D128-intervals", slots_q=(70, 1), dim=128, value_dim=128, right=None, intervals=3, interval_heads=2
        ),
        Problem(
            "hstu-D256-used",
            slots_q=(70, 20),
            used_q=(65, 0),
            used_k=(66, 0),
            dim=256,
            value_dim=256,
            max_seqlen=16,
            divisor=2.0,
        ),
        # A dense bias whose rows are odd, so that it is read element by element; and one that is copied in chunks.
        Problem("softmax-D64-dense", slots_q=(0, 65, 131), softmax=True, bias="dense", extra_rows=3),
        Problem("softmax-D64-dense-whole", slots_q=(0, 65, 131), softmax=True, bias="dense", max_seqlen=200),
        Problem(
            "softmax-D128-packed",
            slots_q=(3, 66),
            slots_k=(129, 70),
            dim=128,
            value_dim=128,
            bfloat16=False,
            softmax=True,
            softcap=4.0,
            bias="packed",
            bias_float32=True,
        ),
        Problem(
            "hstu-D40-Dv72-bucketed",
            slots_q=(70, 20, 0),
            used_q=(65, 0, 0),
            used_k=(66, 7, 0),
            dim=40,
            value_dim=72,
            bias="bucketed",
        ),
        # A score function whose float16 passes 65504, so that rows are scaled, under a mask function.
        Problem(
            "hstu-D64-functions",
            slots_q=(0, 65, 131),
            bfloat16=False,
            right=None,
            divisor=1e5,
            score="steep",
            mask_function="by-head",
        ),
        # Short queries beside a long one: three kernels and the one that adds up.
        Problem("softmax-D64-split", slots_q=(1, 20, 0, 70, 3), slots_k=(600, 300, 5, 70, 257), softmax=True),
    )
}


@dataclass(frozen=True)
class Benchmark:
    """HSTU or softmax forward, and as peers softmax attention at the same shape without contexts, targets and bias.

    Lengths are equal, or with `shortest` drawn uniformly from shortest..length with seed 0. bias: "rab" (dense, for
    each sequence and head) or "rab-bucketed" (position and time tables for each head); the same shape without it is
    timed beside it as `warploom-no-bias`.
    """

    batch: int
    length: int
    dim: int
    shortest: int | None = None
    causal: bool = True
    contexts: int = 0
    targets: int = 0
    heads: int = 4
    softmax: bool = False
    bias: str | None = None

    @property
    def name(self) -> str:
        lengths = (
            f"uniform-B{self.batch}-L{self.length}"
            if self.shortest is None
            else f"jagged-B{self.batch}-L{self.shortest}..{self.length}"
        )
        mask = "causal" if self.causal else "full"
        suffix = f"-ctx{self.contexts}-tgt{self.targets}" if self.targets else ""
        suffix += f"-{self.bias}" if self.bias else ""
        operator = "softmax" if self.softmax else "hstu"
        return f"{operator}-{lengths}-H{self.heads}-D{self.dim}-{mask}{suffix}-bf16"


BENCHMARKS = {
    benchmark.name: benchmark
    for dim in (64, 128)
    for benchmark in (
        Benchmark(8, 4096, dim),
        Benchmark(8, 4096, dim, contexts=4, targets=64),
        Benchmark(8, 4096, dim, causal=False),
        Benchmark(32, 1024, dim),
        Benchmark(64, 2048, dim, shortest=256),
        Benchmark(64, 2048, dim, shortest=256, contexts=4, targets=64),
    )
}
BENCHMARKS |= {b.name: b for b in (Benchmark(8, 4096, 256), Benchmark(8, 4096, 256, causal=False))}
# 16,384 tokens, heads times head dimension 2048.
BENCHMARKS |= {
    b.name: b
    for dim in (64, 128, 256)
    for length in (1024, 4096, 16384)
    for b in (
        Benchmark(16384 // length, length, dim, heads=2048 // dim, softmax=True),
        Benchmark(16384 // length, length, dim, heads=2048 // dim, softmax=True, causal=False),
    )
}
BENCHMARKS |= {
    b.name: b
    for bias in ("rab", "rab-bucketed")
    for b in (
        Benchmark(8, 4096, 128, bias=bias),
        Benchmark(8, 4096, 64, bias=bias),
        Benchmark(64, 2048, 128, shortest=256, bias=bias),
        Benchmark(8, 4096, 128, softmax=True, bias=bias),
    )
}
BENCHMARKS |= {b.name: b for b in (Benchmark(8, 4096, 256, bias="rab"),)}
# Of those with a bias the operator with the weaker peer, and of tables one shape.
BACKWARD_BENCHMARKS = {
    name: b
    for name, b in BENCHMARKS.items()
    if b.bias is None or (not b.softmax and (b.bias == "rab" or (b.dim == 128 and b.shortest is None)))
}


@dataclass(frozen=True)
class Decode:
    """Few queries of each sequence against many keys, without a mask: what is read is K and V. Peers: softmax."""

    batch: int
    queries: int
    keys: int
    key_heads: int
    heads: int = 8
    dim: int = 128
    softmax: bool = True

    @property
    def name(self) -> str:
        lengths = f"B{self.batch}-Lq{self.queries}-K{self.keys}"
        operator = "softmax" if self.softmax else "hstu"
        return f"{operator}-decode-{lengths}-H{self.heads}-Hkv{self.key_heads}-D{self.dim}-bf16"


DECODES = {
    b.name: b
    for b in (
        Decode(1, 1, 131072, 8),
        Decode(8, 16, 131072, 1),
        Decode(8, 16, 32768, 8, softmax=False),
    )
}
# What the machine can do: bytes moved by a copy. The library's matrix product is measured beside ours.
CEILINGS = {"copy-4GiB": ("torch",)}
GEMM = (
    "kernels/gemm/gemm_sm90.cu",
    "kernels/gemm/gemm_few_rows.cu",
    "src/gpu/gemm.cpp",
    "src/gpu/gemm_plan.cpp",
    "src/gpu/gemm_plan.h",
    *HOST_FILES,
)


def _hopper_adds_bias(p: Problem) -> bool:
    """Whether the Hopper kernel adds the problem's bias."""
    return p.intervals is None and p.softcap is None and not p.thresholds


# Biases that the kernels for every GPU check too: each form with both operators, under one mask each.
BIASES_BOTH_WAYS = {*(f"bias-{form}" for form in BIASES), *(f"softmax-bias-{form}-delta-q" for form in BIASES)}


def both_ways(section: str, name: str, case: str) -> list[Item]:
    """The case on the kernels that a call chooses by itself and, marked @mma, on those for every GPU. Most with a bias
    have one entry: on the latter they differ in little from those that have two. So has a user's score function, which
    the latter alone take."""
    problem = PROBLEMS.get(case) or SANITIZER_PROBLEMS.get(case)
    split = SPLIT if problem is None or problem.slots_k is not None else ()
    if problem is not None and problem.score is not None:
        return [Item(section, name, (*FORWARD, *split, *FUNCTIONS))]
    if problem is not None and problem.bias is not None:
        if not _hopper_adds_bias(problem):
            return [Item(section, name, (*FORWARD, *split))]
        if case not in BIASES_BOTH_WAYS and case not in SANITIZER_PROBLEMS:
            return [Item(section, name, (*HOPPER_FORWARD, *FORWARD, *split))]
    chosen = HOPPER_FORWARD if problem is not None else (*HOPPER_FORWARD, *FORWARD)
    return [Item(section, name, (*chosen, *split)), Item(section, f"{name}{MMA_ONLY}", (*FORWARD, *split))]


def rungs_of(folder: str) -> dict[str, dict[str, Any]]:
    """By name, the rows of a folder's ladder.json that have a file of their own; `folder` is below the repository."""
    rows = json.loads((ROOT / folder / "ladder.json").read_text())["rungs"]
    return {row["name"]: row for row in rows if "file" in row}


def ladder_rungs() -> dict[str, tuple[str, ...]]:
    """The rungs of both ladders that have a file of their own, and what each is made of."""
    return {
        f"{kind}-{name}": (f"{folder}/{row['file']}", f"{folder}/call.h", f"{folder}/ladder.json")
        for kind, folder in (("attention", "examples/ladder"), ("gemm", "examples/gemm_ladder"))
        for name, row in rungs_of(folder).items()
    }


def all_items() -> list[Item]:
    """Every entry of a complete report, in the report's order."""
    items = [Item("checks", f"device-{name}", (source,)) for name, source in DEVICE_TESTS.items()]
    for name in (*PROBLEMS, *SPECIAL_CHECKS):
        if name not in SPLIT_PROBLEMS and name not in FUNCTION_PROBLEMS:
            items += both_ways("checks", f"forward-{name}", name)
    # Sequences whose queries are not short go to the kernel that the call chooses for them.
    items += [Item("checks", f"forward-{name}", (*HOPPER_FORWARD, *FORWARD, *SPLIT)) for name in SPLIT_PROBLEMS]
    for name, problem in FUNCTION_PROBLEMS.items():
        # A score function keeps a call to mma.sync; a mask function ends as an interval mask wherever those run.
        chosen = FORWARD if problem.score is not None else (*HOPPER_FORWARD, *FORWARD)
        items.append(Item("checks", f"forward-{name}", (*chosen, *SPLIT, *FUNCTIONS)))
    items += [Item("checks", f"functions-{name}", (*FORWARD, *BACKWARD, *FUNCTIONS)) for name in FUNCTION_CHECKS]
    items += [Item("checks", f"split-{name}", (*HOPPER_FORWARD, *FORWARD, *SPLIT)) for name in SPLIT_CHECKS]
    for name in (*BACKWARD_PROBLEMS, *BACKWARD_SPECIAL_CHECKS):
        functions = FUNCTIONS if name in FUNCTION_PROBLEMS else ()
        items.append(Item("checks", f"backward-{name}", (*HOPPER_BACKWARD, *BACKWARD, *functions)))
        if name.startswith(BACKWARD_BOTH_WAYS):
            items.append(Item("checks", f"backward-{name}{MMA_ONLY}", BACKWARD))
    items += [
        Item("checks", f"torch-{name}", (*HOPPER_FORWARD, *FORWARD, *HOPPER_BACKWARD, *BACKWARD))
        for name in TORCH_CHECKS
    ]
    items += [
        Item("checks", f"trace-{name}", (*(HOPPER_BACKWARD if trace.backward else HOPPER_FORWARD), *TRACER))
        for name, trace in TRACES.items()
    ]
    items += [Item("checks", f"trace-{name}", (*GEMM, *TRACER)) for name in PRODUCT_TRACES]
    items += [Item("checks", f"gemm-{name}", GEMM) for name in gpu_gemm_cases.CHECKS]
    items += [Item("checks", f"ladder-{name}", sources) for name, sources in ladder_rungs().items()]
    for tool in SANITIZER_TOOLS:
        of_tool = []
        for case, problem in SANITIZER_PROBLEMS.items():
            of_tool += both_ways("sanitizer", f"{tool}/{case}", case)
            # The same problem's gradients of both operators, by sums in memory and by the deterministic kernels.
            if problem.score is not None:
                if tool == "memcheck":
                    sources = (*HOPPER_BACKWARD, *BACKWARD, *FUNCTIONS)
                    of_tool.append(Item("sanitizer", f"{tool}/backward-{case}", sources))
            elif "split" not in case and (problem.bias is None or tool in ("memcheck", "racecheck")):
                of_tool.append(Item("sanitizer", f"{tool}/backward-{case}", (*HOPPER_BACKWARD, *BACKWARD)))
                if problem.bias is None:
                    of_tool.append(Item("sanitizer", f"{tool}/backward-{case}{MMA_ONLY}", BACKWARD))
        # racecheck takes an mbarrier's arrival for that of its own thread only, and knows nothing of the end of a
        # wgmma: where one lane arrives for its warp it reports races that are none. The protocol checker is for those.
        checked = [x for x in of_tool if x.sources[: len(FORWARD)] == FORWARD or x.name.endswith(MMA_ONLY)]
        items += checked if tool == "racecheck" else of_tool
        items.append(Item("sanitizer", f"{tool}/copies", ("tests/device/copies_test.cu",)))
        if tool in gpu_gemm_cases.SANITIZED_BY:
            items.append(Item("sanitizer", f"{tool}/{gpu_gemm_cases.SANITIZED_BY[tool]}", GEMM))
    # A peer that the machine does not have leaves its records out and makes nothing stale.
    for name, benchmark in BENCHMARKS.items():
        ours = ("warploom",) if benchmark.bias else ("warploom", "warploom-mma")
        items.append(Item("bench", name, (*HOPPER_FORWARD, *FORWARD), ours))
    items += [Item("bench", name, (*HOPPER_FORWARD, *FORWARD, *SPLIT), ("warploom",)) for name in DECODES]
    items += [
        Item("bench", f"{name}/backward", (*HOPPER_BACKWARD, *BACKWARD), ("warploom",)) for name in BACKWARD_BENCHMARKS
    ]
    items += [Item("bench", name, GEMM, ("warploom",)) for name in gpu_gemm_cases.BENCHMARKS]
    items += [Item("bench", name, (), implementations) for name, implementations in CEILINGS.items()]
    return items
