"""Host side of tests/device/wgmma_test.cu, hopper_memory_test.cu and ring_copies_test.cu: Hopper's layer against NumPy.

On a GPU without them every test passes: their kernels are for sm_90a only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gpu_driver import Array, Gpu, TensorMap, compile_file
from gpu_report import ROOT

WGMMA = ROOT / "tests" / "device" / "wgmma_test.cu"
MEMORY = ROOT / "tests" / "device" / "hopper_memory_test.cu"
RING_COPIES = ROOT / "tests" / "device" / "ring_copies_test.cu"
WIDTHS = tuple(range(8, 257, 8))
BARRIER_BYTES = 1024


def same(found: Array, expected: Array, what: str) -> None:
    different = np.argwhere(found != expected)
    if len(different):
        place = tuple(int(x) for x in different[0])
        raise AssertionError(f"{what}: {len(different)} differ, at {place} {found[place]} instead of {expected[place]}")


def width_defines(width: int) -> tuple[str, ...]:
    return (f"WIDTHS=OF_WIDTH({width})",)


# Small integers in each format, exactly: value -> bits.


def _bf16(x: Array) -> Array:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _fp16(x: Array) -> Array:
    return x.astype(np.float16).view(np.uint16)


def _fp8(mantissa_bits: int, bias: int) -> Callable[[Array], Array]:
    def encode(x: Array) -> Array:
        mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))  # mantissa in [0.5, 1)
        fraction = np.round((2 * mantissa - 1) * 2**mantissa_bits).astype(np.int64)
        bits = ((exponent - 1 + bias) << mantissa_bits) + fraction
        return np.where(x == 0, 0, bits + (x < 0) * 128).astype(np.uint8)

    return encode


ENCODE: dict[str, Callable[[Array], Array]] = {"bf16": _bf16, "fp16": _fp16, "e4m3": _fp8(3, 7), "e5m2": _fp8(2, 15)}


def _products(gpu: Gpu, random: Any, kind: str, forms: tuple[str, ...]) -> None:
    depth = 64 if ENCODE[kind](np.zeros(1)).itemsize == 2 else 128
    limit = 4 if kind == "e5m2" else 8  # integers that the format holds
    for n in WIDTHS:
        a, b = (random.integers(-limit, limit + 1, (rows, depth)).astype(np.float32) for rows in (64, n))
        c = random.integers(-50, 51, (64, n)).astype(np.float32)
        for form in forms:
            stored_a = ENCODE[kind](a.T if "_ta" in form else a)
            # Transposed, B is rows of K over whole panels of 64 columns.
            stored_b = ENCODE[kind](np.pad(b.T, ((0, 0), (0, -n % 64))) if "_tb" in form else b)
            out = gpu.filled(64 * n * 4)
            gpu.launch(
                WGMMA,
                f"{kind}_{form}_{n}",
                *(gpu.array(np.ascontiguousarray(x)) for x in (stored_a, stored_b, c)),
                out,
                block=128,
                shared=64 * 128 + 256 * 128,
                defines=width_defines(n),
            )
            same(out.read(np.float32, (64, n)), c + a @ b.T, f"{kind} {form}, N = {n}")


def _compile_all_widths(gpu: Gpu) -> None:
    missing = [n for n in WIDTHS if (WGMMA, width_defines(n)) not in gpu.modules]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = pool.map(lambda n: compile_file(WGMMA, gpu.architecture(), width_defines(n)), missing)
        for n, cubin in zip(missing, cubins, strict=True):
            gpu.load(WGMMA, width_defines(n), cubin)


def wgmma_products(gpu: Gpu, random: Any) -> None:
    """Every width, both sources of A, both majors: small integers, whose sums are exact."""
    _compile_all_widths(gpu)
    _products(gpu, random, "bf16", ("ss", "rs", "ss_tb", "ss_ta", "ss_ta_tb", "rs_tb"))
    for kind in ("fp16", "e4m3", "e5m2"):
        _products(gpu, random, kind, ("ss", "rs"))


def swizzled(image: Array, span: int) -> Array:
    """The bytes of a box as TMA lays them down: bits 4 and up of the address are xored with those from bit 7 on.

    Source: PTX ISA, "Swizzling modes".
    """
    address = np.arange(image.size)
    moved = address ^ ((address >> 7) % (span // 16 if span else 1)) << 4
    out = np.empty_like(image)
    out[moved] = image
    return out


# (dtype, tensor shape outermost first, box outermost first, swizzle)
BOXES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int], ...] = (
    ("float32", (1000,), (64,), 0),
    ("uint8", (300, 256), (32, 128), 128),
    ("uint16", (100, 72), (64, 64), 128),
    ("uint16", (100, 72), (40, 32), 64),
    ("uint16", (100, 72), (40, 16), 32),
    ("uint16", (100, 72), (40, 24), 0),
    ("uint16", (100, 69), (40, 64), 128),
    ("uint16", (5, 60, 64), (1, 48, 64), 128),
    ("float16", (5, 60, 64), (2, 17, 64), 128),
    ("int32", (4, 3, 20, 32), (2, 3, 16, 32), 128),
    ("float32", (3, 2, 2, 9, 16), (2, 1, 2, 8, 16), 64),
    ("float32", (3, 2, 2, 9, 16), (2, 1, 2, 8, 16), 0),
)


def _strides(shape: tuple[int, ...], itemsize: int, pad_bytes: int) -> tuple[int, ...]:
    """Bytes, innermost dimension first, without its own; rows are padded to 16 bytes and more."""
    stride = -(-shape[-1] * itemsize // 16) * 16 + pad_bytes
    strides = [stride]
    for extent in reversed(shape[1:-1]):
        strides.append(strides[-1] * extent)
    return tuple(strides[: len(shape) - 1])


def _corners(random: Any, shape: tuple[int, ...], box: tuple[int, ...], itemsize: int) -> list[tuple[int, ...]]:
    """Boxes inside, over the lower and the upper edges, and wholly outside.

    The innermost coordinate is a multiple of 16 bytes: any other is an illegal instruction.
    """
    corners = [tuple(0 for _ in shape), tuple(s - b // 2 for s, b in zip(shape, box, strict=True)), shape]
    corners.append(tuple(-(b // 2) for b in box))
    for _ in range(4):
        corners.append(tuple(int(random.integers(-b, s + 1)) for s, b in zip(shape, box, strict=True)))
    step = 16 // itemsize
    return [(*outer, inner // step * step) for *outer, inner in corners]


def _placed(shape: tuple[int, ...], box: tuple[int, ...], corner: tuple[int, ...]) -> tuple[Any, Any]:
    """Where tensor and box overlap: slices of the tensor, slices of the box."""
    inside = [
        (max(0, c), min(s, c + b), c) if min(s, c + b) > max(0, c) else (0, 0, 0)
        for s, b, c in zip(shape, box, corner, strict=True)
    ]
    return tuple(slice(lo, hi) for lo, hi, _ in inside), tuple(slice(lo - c, hi - c) for lo, hi, c in inside)


def _padded(random: Any, dtype: str, shape: tuple[int, ...]) -> tuple[Array, Array, tuple[int, ...]]:
    """(memory, a view of it of that shape, strides as TensorMap takes them)."""
    itemsize = np.dtype(dtype).itemsize
    strides = _strides(shape, itemsize, 32)
    size = strides[-1] * shape[0] if strides else shape[0] * itemsize
    values = random.integers(-100 if dtype[0] in "if" else 0, 100, size // itemsize).astype(dtype)
    view = np.lib.stride_tricks.as_strided(values, shape, (*reversed(strides), itemsize))
    return values, view, strides


def tma_loads(gpu: Gpu, random: Any) -> None:
    for dtype, shape, box, swizzle in BOXES:
        memory, view, strides = _padded(random, dtype, shape)
        array = gpu.array(memory)
        tensor_map = TensorMap(array, dtype, shape[::-1], strides, box[::-1], swizzle)
        count = int(np.prod(box)) * memory.itemsize
        for corner in _corners(random, shape, box, np.dtype(dtype).itemsize):
            out = gpu.filled(count)
            coordinates = np.array([*corner[::-1], 0, 0, 0, 0][:5], np.int32)
            shared = BARRIER_BYTES + count
            gpu.launch(MEMORY, f"load_box_{len(shape)}", tensor_map, coordinates, count, out, block=128, shared=shared)
            expected = np.zeros(box, dtype)
            source, target = _placed(shape, box, corner)
            expected[target] = view[source]
            same(
                out.read(np.uint8, (count,)),
                swizzled(expected.ravel().view(np.uint8), swizzle),
                f"{dtype} {shape} box {box} at {corner}, swizzle {swizzle}",
            )


def _chunk_rests(memory: Array, view: Array) -> Array:
    """Of rows that are no multiple of 16 bytes, the rest of the last 16: TMA stores write there."""
    whole = -(-view.shape[-1] * memory.itemsize // 16) * 16 // memory.itemsize
    return np.lib.stride_tricks.as_strided(memory, (*view.shape[:-1], whole), view.strides)[..., view.shape[-1] :]


def tma_stores(gpu: Gpu, random: Any) -> None:
    """Plain and adding; what is outside the tensor, padding between rows included, stays as it was."""
    for dtype, shape, box, swizzle in BOXES:
        for add in (False, True):
            if add and dtype in ("uint8", "uint16"):
                continue  # no such reduction
            for any_corner in _corners(random, shape, box, np.dtype(dtype).itemsize):
                corner = tuple(max(0, c) for c in any_corner)  # a store takes no other
                memory, view, strides = _padded(random, dtype, shape)
                array = gpu.array(memory)
                tensor_map = TensorMap(array, dtype, shape[::-1], strides, box[::-1], swizzle)
                image = random.integers(0, 100, box).astype(dtype)
                coordinates = np.array([*corner[::-1], 0, 0, 0, 0][:5], np.int32)
                gpu.launch(
                    MEMORY,
                    f"store_box_{len(shape)}",
                    tensor_map,
                    coordinates,
                    image.nbytes,
                    int(add),
                    gpu.array(swizzled(image.ravel().view(np.uint8), swizzle)),
                    block=128,
                    shared=BARRIER_BYTES + image.nbytes,
                )
                target, source = _placed(shape, box, corner)
                view[target] = view[target] + image[source] if add else image[source]  # writes to memory
                what = f"{dtype} {shape} box {box} at {corner}, swizzle {swizzle}, {'add' if add else 'store'}"
                found = array.read(memory.dtype, memory.shape)
                _chunk_rests(found, view)[...] = _chunk_rests(memory, view)
                same(found, memory, what)


def bulk_copies(gpu: Gpu, random: Any) -> None:
    for count, ctas in ((4, 1), (1024, 50), (16384, 20)):
        values = random.integers(-50, 51, count).astype(np.float32)
        copy, total = gpu.filled(4 * count), gpu.array(np.ones(count, np.float32))
        gpu.launch(
            MEMORY,
            "bulk_copies",
            gpu.array(values),
            4 * count,
            copy,
            total,
            grid=ctas,
            shared=BARRIER_BYTES + 4 * count,
        )
        same(copy.read(np.float32, (count,)), values, f"copy of {count}")
        same(total.read(np.float32, (count,)), 1 + ctas * values, f"{count} values added by {ctas} CTAs")


def mbarrier_phases(gpu: Gpu, random: Any) -> None:
    for warps in (2, 4, 16):
        errors = gpu.array(np.zeros(1, np.uint32))
        gpu.launch(MEMORY, "phases", 20000, errors, grid=8, block=32 * warps)
        same(errors.read(np.uint32, (1,)), np.zeros(1, np.uint32), f"slots read wrong by {warps - 1} warps")


def named_barriers(gpu: Gpu, random: Any) -> None:
    log = gpu.filled(4 * 2 * 3000)
    gpu.launch(MEMORY, "turns", 3000, log, block=64)
    same(log.read(np.uint32, (6000,)), np.arange(6000, dtype=np.uint32) % 2, "turns")


def register_budget(gpu: Gpu, random: Any) -> None:
    x = random.integers(-9, 10, (200, 256)).astype(np.float32)
    out = gpu.filled(4 * 256 * 201)
    gpu.launch(MEMORY, "register_budget", gpu.array(x), out, block=384)
    expected = x.copy()
    for _ in range(3):
        for i in range(200):
            expected[i] += expected[(i + 1) % 200]
    found = out.read(np.float32, (201, 256))
    same(found[1:], expected, "sums held in 200 registers")
    same(found[0, :1], x[0, :1] + 1, "the warpgroup that gave registers up")


def stmatrix(gpu: Gpu, random: Any) -> None:
    fragments = random.integers(0, 2**32, (32, 4), dtype=np.uint32)
    pairs = fragments.view(np.uint16).reshape(32, 4, 2)  # lane, block, neighbour
    # Lane l holds row l / 4, columns l % 4 * 2 and + 1 of each 8 x 8 block.
    blocks = pairs.reshape(8, 4, 4, 2).transpose(2, 0, 1, 3).reshape(4, 8, 8)
    for count in (1, 2, 4):
        for trans in (False, True):
            out = gpu.filled(512)
            gpu.launch(MEMORY, f"stmatrix_{count}{'_trans' if trans else ''}", gpu.array(fragments), out)
            expected = np.full((4, 8, 8), 0xFFFF, np.uint16)
            expected[:count] = blocks[:count].transpose(0, 2, 1) if trans else blocks[:count]
            same(out.read(np.uint16, (4, 8, 8)), expected, f"x{count}, {'transposed' if trans else 'plain'}")


def cluster_multicast(gpu: Gpu, random: Any) -> None:
    rounds = 300
    values = random.integers(0, 2**16, (rounds, 64, 64), dtype=np.uint16)
    array = gpu.array(values)
    tensor_map = TensorMap(array, "uint16", (64, rounds * 64), (128,), (64, 32), 0)
    out = gpu.filled(2 * values.nbytes)
    gpu.launch(MEMORY, "multicast", tensor_map, rounds, out, grid=2, block=64, shared=BARRIER_BYTES + 64 * 128)
    same(out.read(np.uint16, (2, *values.shape)), np.stack((values, values)), "boxes in both CTAs")


def election_and_grid_wait(gpu: Gpu, random: Any) -> None:
    out = gpu.filled(16)
    gpu.launch(MEMORY, "elected", out)
    lanes = out.read(np.uint32, (4,))
    assert int(lanes[0]).bit_count() == 1, f"elected lanes: {lanes}"
    same(lanes, np.full(4, lanes[0]), "the lanes elected the second time and later")
    values = random.integers(0, 2**32, 4096, dtype=np.uint32)
    out = gpu.filled(values.nbytes)
    gpu.launch(MEMORY, "after_wait", gpu.array(values), out, grid=32, block=128)
    same(out.read(np.uint32, values.shape), values, "copied after griddepcontrol.wait")


def ring_copies(gpu: Gpu, random: Any) -> None:
    """Each kind of copy through a ring of three slots, a slot of 40 rows of 128 bytes a round."""
    rounds, rows, width, stride = 23, 40, 128, 176
    table = random.integers(0, 256, (7 * (rounds - 1) + rows, stride), dtype=np.uint8)
    numbers = random.integers(0, len(table), (rounds, rows)).astype(np.int32)
    in_order = 7 * np.arange(rounds)[:, None] + np.arange(rows)
    plain, picked = table[in_order, :width], table[numbers, :width]
    copied = np.where((np.arange(rows) < rows - np.arange(rounds)[:, None] % 5)[..., None], plain, 0)
    array = gpu.array(table)
    at = array, np.int64(stride)
    tensor_map = TensorMap(array, "uint8", (width, len(table)), (stride,), (width, rows), 0)
    for kernel, arguments, expected in (
        ("boxes", (tensor_map,), plain),
        ("strided_rows", at, plain),
        ("picked_rows", (*at, gpu.array(numbers)), picked),
        ("copied_rows", at, copied),
    ):
        out = gpu.filled(expected.size)
        gpu.launch(RING_COPIES, kernel, *arguments, rounds, out, block=128, shared=3 * rows * width + 64)
        same(out.read(np.uint8, expected.shape), expected.astype(np.uint8), kernel)


_FUNCTIONS: tuple[Callable[[Gpu, Any], None], ...] = (
    wgmma_products,
    tma_loads,
    tma_stores,
    bulk_copies,
    mbarrier_phases,
    named_barriers,
    register_budget,
    stmatrix,
    cluster_multicast,
    election_and_grid_wait,
    ring_copies,
)
TESTS = {function.__name__.replace("_", "-"): function for function in _FUNCTIONS}


def run(gpu: Gpu, name: str, random: Any) -> None:
    if gpu.architecture() == "sm_90a":
        TESTS[name](gpu, random)
