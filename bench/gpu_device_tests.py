"""Host side of tests/device: each building block of the tile layer (docs/gpu-check.md) against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpu_activations
import gpu_hopper_tests
import numpy as np
from gpu_cases import DEVICE_TESTS, Problem
from gpu_driver import Array, Gpu
from gpu_report import EXAMPLES, ROOT

DEVICE = ROOT / "tests" / "device"
MMA, COPIES = DEVICE / "mma_test.cu", DEVICE / "copies_test.cu"
OWN_PIPELINE = EXAMPLES / "cpp" / "own_pipeline" / "own_pipeline.cu"
CONVERSION, VISIBILITY = DEVICE / "conversion_test.cu", DEVICE / "visibility_test.cu"

# (rows, columns, threads) of copies_test.cu's TILE_ROUND_TRIP.
TILES = (
    (64, 8, 128),
    (64, 24, 128),
    (64, 64, 128),
    (32, 72, 128),
    (128, 128, 128),
    (128, 136, 256),
    (64, 200, 256),
    (128, 256, 256),
)

_gpu: Gpu | None = None


def gpu() -> Gpu:
    global _gpu
    if _gpu is None:
        _gpu = Gpu()
    return _gpu


def run(name: str) -> None:
    """Raises AssertionError when the named test fails."""
    random = np.random.default_rng(sum(map(ord, name)))
    if name in gpu_hopper_tests.TESTS:
        gpu_hopper_tests.run(gpu(), name, random)
    else:
        TESTS[name](random)


def to_bf16(x: Array) -> Array:
    """float32 to bfloat16 bits, to nearest even; a NaN stays one."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    nearest = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FFF, nearest).astype(np.uint16)


def to_fp16(x: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(x, np.float32).astype(np.float16).view(np.uint16)


ROUND: dict[str, Callable[[Array], Array]] = {"fp16": to_fp16, "bf16": to_bf16}


def as_float(bits: Array, kind: str) -> Array:
    if kind == "fp16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def same(found: Array, expected: Array, what: str) -> None:
    different = np.argwhere(found != expected)
    if len(different):
        place = tuple(int(x) for x in different[0])
        raise AssertionError(f"{what}: {len(different)} differ, at {place} {found[place]} instead of {expected[place]}")


def mma_products(random: Any) -> None:
    """Small integers: every product and sum is exact, so any misplaced element shows."""
    for kind in ROUND:
        for _ in range(20):
            a, b, c = (random.integers(-8, 9, shape).astype(np.float32) for shape in ((16, 16), (8, 16), (16, 8)))
            d = gpu().filled(16 * 8 * 4)
            gpu().launch(MMA, f"product_{kind}", *(gpu().array(x) for x in (ROUND[kind](a), ROUND[kind](b), c)), d)
            same(d.read(np.float32, (16, 8)), a @ b.T + c, f"{kind} A B^T + C")


def scores_are_operands(random: Any) -> None:
    for kind in ROUND:
        for _ in range(20):
            a, b = (random.integers(-3, 4, (16, 16)).astype(np.float32) for _ in range(2))
            v = random.integers(-3, 4, (8, 16)).astype(np.float32)
            o = gpu().filled(16 * 8 * 4)
            gpu().launch(MMA, f"chained_{kind}", *(gpu().array(ROUND[kind](x)) for x in (a, b, v)), o)
            same(o.read(np.float32, (16, 8)), (a @ b.T) @ v.T, f"{kind} (A B^T) V^T")
            gpu().launch(
                MMA,
                f"chained_{kind}",
                *(gpu().array(ROUND[kind](x)) for x in (a, b, np.eye(8, 16, dtype=np.float32))),
                o,
            )
            same(o.read(np.float32, (16, 8)), (a @ b.T)[:, :8], f"{kind} (A B^T) I")


def ldmatrix(random: Any) -> None:
    panel = random.permutation(64 * 64).astype(np.uint16).reshape(64, 64)
    lane, register = np.meshgrid(np.arange(32), np.arange(4), indexing="ij")
    for row_block in range(4):
        for column_block in range(4):
            block = panel[16 * row_block : 16 * row_block + 16, 16 * column_block : 16 * column_block + 16].astype(
                np.uint32
            )
            # The fragment of each register: down then right, or right then down.
            for order, (down, right) in {
                "a": (register % 2, register // 2),
                "b": (register // 2, register % 2),
            }.items():
                plain, transposed = gpu().filled(512), gpu().filled(512)
                kernel, place = f"ldmatrix_block_{order}", f"{row_block}, {column_block} in order {order}"
                gpu().launch(COPIES, kernel, gpu().array(panel), row_block, column_block, plain, transposed)
                row, column = lane // 4 + down * 8, lane % 4 * 2 + right * 8
                expected = block[row, column] | block[row, column + 1] << 16
                same(plain.read(np.uint32, (32, 4)), expected, f"block {place}")
                row, column = lane % 4 * 2 + down * 8, lane // 4 + right * 8
                expected = block[row, column] | block[row + 1, column] << 16
                same(transposed.read(np.uint32, (32, 4)), expected, f"transposed block {place}")


def cp_async_zero_fill(random: Any) -> None:
    chunks = random.integers(0, 2**32, (128, 4), dtype=np.uint32)
    for valid in (np.ones(128), np.zeros(128), random.integers(0, 2, 128)):
        out = gpu().filled(2048)
        gpu().launch(COPIES, "zero_fill", gpu().array(chunks), gpu().array(valid.astype(np.int32)), out, block=128)
        expected = np.roll(np.where(valid[:, None] != 0, chunks, 0), -32, axis=0)
        same(out.read(np.uint32, (128, 4)), expected, "chunks")


def cp_async_delayed_producers(random: Any) -> None:
    rounds = 40
    chunks = random.integers(0, 2**32, (rounds, 128, 4), dtype=np.uint32)
    for cycles in (0, 2000, 20000):
        out = gpu().filled(chunks.nbytes)
        gpu().launch(COPIES, "delayed_producers", gpu().array(chunks), rounds, cycles, out, block=128)
        same(out.read(np.uint32, chunks.shape), np.roll(chunks, -32, axis=1), f"chunks, producers {cycles} cycles late")


def cp_async_oldest_groups(random: Any) -> None:
    chunks = random.integers(0, 2**32, (3, 128, 4), dtype=np.uint32)
    out = gpu().filled(chunks.nbytes)
    gpu().launch(COPIES, "oldest_groups_land_first", gpu().array(chunks), out, block=128)
    same(out.read(np.uint32, chunks.shape), chunks, "chunks")


def tile_round_trip(random: Any) -> None:
    for rows, columns, threads in TILES:
        padded, gap = -(-columns // 16) * 16, 8
        for valid in (rows, rows - 5, 1, 0, rows + 100):
            present = min(valid, rows)
            # Exactly the valid rows exist: a read past them is a fault under compute-sanitizer.
            source = random.integers(0, 2**16, (max(1, present), columns + gap), dtype=np.uint16)
            out = gpu().filled(rows * padded * 2)
            shared = -(-columns // 64) * rows * 128
            gpu().launch(
                COPIES,
                f"tile_{rows}x{columns}_by_{threads}",
                gpu().array(source),
                np.int64(2 * (columns + gap)),
                valid,
                out,
                block=threads,
                shared=shared,
            )
            expected = np.zeros((rows, padded), np.uint16)
            expected[:present, :columns] = source[:present, :columns]
            same(out.read(np.uint16, (rows, padded)), expected, f"{rows}x{columns}, {valid} valid rows")


def registers_to_global(random: Any) -> None:
    for columns in (24, 128):
        values = random.standard_normal((16, columns)).astype(np.float32)
        out = gpu().filled(16 * columns * 2)
        gpu().launch(COPIES, f"registers_to_global_{columns}", gpu().array(values), out)
        same(out.read(np.uint16, (16, columns)), to_fp16(values), f"rows of {columns}")


def _float_bits(*parts: Array) -> Array:
    return np.concatenate([np.asarray(part, np.uint32).ravel() for part in parts]).view(np.float32)


def pack_rounding(random: Any) -> None:
    """Every 16-bit value, what lies halfway to the next one, their neighbours, NaN, infinities and random bits."""
    for kind in ROUND:
        exact = as_float(np.arange(2**16, dtype=np.uint16), kind)
        exact = exact[~np.isnan(exact)]
        finite = np.sort(exact[np.isfinite(exact)].astype(np.float64))
        with np.errstate(over="ignore"):
            halfway = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
        near = np.concatenate((exact, halfway)).view(np.uint32)
        special = np.array(
            [
                0x7FC00000,
                0xFFC00000,
                0x7F800001,
                0x7FFFFFFF,
                0x7F800000,
                0xFF800000,
                0,
                0x80000000,
                0x477FEFFF,
                0x477FF000,
                0x477FF001,
                0x7F7F7FFF,
                0x7F7F8000,
            ],
            np.uint32,
        )  # where overflow begins
        values = _float_bits(near, near + 1, near - 1, random.integers(0, 2**32, 2**18, dtype=np.uint32), special)
        values = values[: len(values) // 2 * 2]
        out = gpu().filled(len(values) * 2)
        pairs = len(values) // 2
        gpu().launch(CONVERSION, f"pack_{kind}", gpu().array(values), out, pairs, grid=-(-pairs // 256), block=256)
        found, expected = out.read(np.uint16, values.shape), ROUND[kind](values)
        is_nan = np.isnan(values)
        same(np.isnan(as_float(found, kind)), is_nan, f"{kind}: NaN stays NaN and nothing else becomes one")
        same(found[~is_nan], expected[~is_nan], kind)


def silu_accuracy(random: Any) -> None:
    z = np.concatenate(
        (np.linspace(-80, 80, 400_001), random.standard_normal(100_000) * 4, [np.inf, -np.inf, np.nan, 0.0, -0.0])
    )
    half = (z / 2).astype(np.float32)
    count = len(half)
    quick, exact = gpu().filled(4 * count), gpu().filled(4 * count)
    gpu().launch(CONVERSION, "silu", gpu().array(half), quick, exact, count, grid=-(-count // 256), block=256)
    z = half.astype(np.float64) * 2
    with np.errstate(over="ignore", invalid="ignore"):
        expected = z / (1 + np.exp(-z))
    found = {"tanh": quick.read(np.float32, (count,)), "exact": exact.read(np.float32, (count,))}
    for form, limit, lowest in (("exact", 2e-5, -80.0), ("tanh", 5e-3, -6.0)):
        inside = np.isfinite(z) & (z >= lowest) & (z != 0)
        error = np.abs(found[form][inside] - expected[inside]) / np.abs(expected[inside])
        worst = int(error.argmax())
        assert error[worst] <= limit, (
            f"{form}: relative error {error[worst]:.2e} at z = {z[inside][worst]:.4f}, limit {limit}"
        )
    for form, values in found.items():
        expected_ends = np.array([np.inf, np.nan, 0, 0])
        assert np.array_equal(values[[-5, -3, -2, -1]], expected_ends, equal_nan=True), f"{form}: {values[-5:]}"
    assert found["exact"][-4] == 0, f"exact form of -inf: {found['exact'][-4]}"


def tanh_limit(random: Any) -> None:
    rows = random.uniform(-2.9, 50, (2000, 16)).astype(np.float32)
    special = np.array([np.nan, np.inf, -3.0, -0.0, 0.0, np.float32(2.9e-39)], np.float32)
    rows[:1000, 3] = special[random.integers(0, len(special), 1000)]
    below = np.array([np.nextafter(np.float32(-3), np.float32(-4)), -3.5, -1e30, -np.inf], np.float32)
    rows[1500:, 7] = below[random.integers(0, len(below), 500)]
    out = gpu().filled(4 * len(rows))
    gpu().launch(CONVERSION, "below_tanh_limit", gpu().array(rows), out, len(rows), grid=8, block=256)
    same(
        out.read(np.int32, (len(rows),)),
        (np.arange(len(rows)) >= 1500).astype(np.int32),
        "groups with a score below the limit",
    )


def activation_errors(random: Any) -> None:
    gpu_activations.check(gpu(), 20_001)


def interval_bits(random: Any) -> None:
    count = 20000
    first = random.integers(0, 100, count).astype(np.int32) * 32
    begin = first + random.integers(-40, 80, count)
    intervals = np.stack((begin, begin + random.integers(-10, 80, count)), axis=1).astype(np.int32)
    intervals[:4] = [[-(2**30), 2**30], [2**30, 0], [0, 2**30], [0, 0]]
    out = gpu().filled(4 * count)
    gpu().launch(
        VISIBILITY,
        "interval_bits",
        gpu().array(intervals),
        gpu().array(first),
        out,
        count,
        grid=-(-count // 256),
        block=256,
    )
    column = first[:, None] + np.arange(32)
    inside = (intervals[:, :1] <= column) & (column < intervals[:, 1:])
    same(
        out.read(np.uint32, (count,)), (inside * (1 << np.arange(32, dtype=np.uint64))).sum(1).astype(np.uint32), "bits"
    )


def _sequence_masks() -> list[tuple[Problem, list[int]]]:
    """(problem, numbers): one sequence under many masks. numbers: the members of SequenceMask."""
    unbounded = 1 << 30
    masks = []
    for lq, lk in ((200, 200), (37, 300), (1, 65), (130, 131), (90, 40)):
        for left in (None, 0, 17, 100):
            for right in (None, 0, 25):
                for contexts, targets, group, end in (
                    (0, 0, 1, False),
                    (3, 0, 1, False),
                    (4, 40, 1, False),
                    (0, lk, 7, True),
                    (2, 33, 5, True),
                ):
                    if right != 0 and (contexts or targets):
                        continue
                    targets = min(targets, lk - contexts)
                    problem = Problem(
                        "one",
                        (lq,),
                        (lk,),
                        left=left,
                        right=right,
                        contexts=(contexts,),
                        targets=(targets,),
                        group=group,
                        from_history_end=end,
                    )
                    sides = [unbounded if side is None else side for side in (left, right)]
                    masks.append((problem, [lq, lk, *sides, contexts, targets, group, int(end)]))
    return masks


def _visible(problem: Problem) -> Array:
    """Section 4 of docs/attention.md, line by line."""
    (lq,), (lk,) = problem.slots_q, problem.slots_k or ()
    (nc,), (nt,) = problem.contexts, problem.targets  # type: ignore[misc]
    r, j, h = np.arange(lq)[:, None] + lk - lq, np.arange(lk)[None, :], lk - nt
    left, right = (10**9 if side is None else side for side in (problem.left, problem.right))
    start = h + (r - h) // problem.group * problem.group
    window = (h if problem.from_history_end else r) - left <= j
    target = (window & (j < h)) | ((start <= j) & (j <= r))
    history = (r - left <= j) & (j <= r + right)
    return np.where((r >= 0) & (r < nc), j < h, np.where(r >= h, target, history))


def mask_rows(random: Any) -> None:
    for problem, numbers in _sequence_masks():
        out = gpu().filled(numbers[0] * numbers[1])
        gpu().launch(VISIBILITY, "mask_rows", gpu().array(np.array(numbers, np.int32)), out, grid=32, block=32)
        same(out.read(np.uint8, (numbers[0], numbers[1])), _visible(problem).astype(np.uint8), f"{numbers}")


def tile_walks(random: Any) -> None:
    most = 16

    def expect(found: Array, see: Array, what: str) -> None:
        for block in range(len(found)):
            rows = see[64 * block : 64 * block + 64]
            expected = [t for t in range(-(-see.shape[1] // 64)) if rows[:, 64 * t : 64 * t + 64].any()]
            walked = found[block].tolist()
            assert walked[: walked.index(-1)] == expected, f"{what}, block {block}: {walked} instead of {expected}"

    for problem, numbers in _sequence_masks():
        blocks = -(-numbers[0] // 64)
        out = gpu().filled(4 * blocks * most)
        gpu().launch(
            VISIBILITY, "walked_tiles", gpu().array(np.array(numbers, np.int32)), out, most, grid=blocks, block=128
        )
        expect(out.read(np.int32, (blocks, most)), _visible(problem), f"{numbers}")
    for count in range(1, 6):
        for rows, columns in ((200, 300), (1, 64), (70, 513)):
            begin = random.integers(-9, columns + 9, (rows, count))
            pairs = np.stack((begin, begin + random.integers(-9, 120, (rows, count))), axis=2).astype(np.int32)
            j = np.arange(columns)
            see = ((pairs[..., :1] <= j) & (j < pairs[..., 1:])).any(axis=1)
            blocks = -(-rows // 64)
            out = gpu().filled(4 * blocks * most)
            gpu().launch(
                VISIBILITY,
                "walked_interval_tiles",
                gpu().array(pairs),
                count,
                rows,
                columns,
                out,
                most,
                grid=blocks,
                block=128,
            )
            expect(out.read(np.int32, (blocks, most)), see, f"{count} intervals, {rows}x{columns}")


def own_pipeline(random: Any) -> None:
    """examples/cpp/own_pipeline: y = A x in float32, a row a warp, so that a block may be cut off at any row."""
    columns, stages = 1024, 4
    for rows, ctas in ((1, 1), (7, 2), (64, 1), (65, 3), (5000, 132)):
        a = random.standard_normal((rows, columns)).astype(np.float32)
        x = random.standard_normal(columns).astype(np.float32)
        y = gpu().filled(4 * rows)
        gpu().launch(
            OWN_PIPELINE,
            "matrix_vector",
            *(gpu().array(values) for values in (a, x)),
            y,
            rows,
            grid=ctas,
            block=9 * 32,
            shared=stages * (8 * 4 * columns + 16),
        )
        error = np.abs(y.read(np.float32, (rows,)) - a.astype(np.float64) @ x.astype(np.float64))
        limit = columns * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(x).astype(np.float64))
        worst = int((error / limit).argmax())
        assert error[worst] <= limit[worst], f"{rows} rows: row {worst} is wrong by {error[worst]}"


TESTS: dict[str, Callable[[Any], None]] = {
    name: globals()[name.replace("-", "_")] for name in DEVICE_TESTS if name not in gpu_hopper_tests.TESTS
}
