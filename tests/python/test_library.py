"""The library behind the package: its structure's layout, releases that differ, devices, plans, threads, the
command."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warploom as wl
from warploom import _layout, _library, _torch

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include" / "warploom" / "warploom.h").read_text()
TYPES = {
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "double": ctypes.c_double,
}


def structure(name: str) -> type[ctypes.Structure]:
    """A structure of the header, read from its text."""
    body = re.search(rf"typedef struct {name} {{(.*?)\n}} {name};", HEADER, re.DOTALL)
    assert body is not None
    fields = []
    for declaration in re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL).split(";"):
        words = " ".join(declaration.replace("const ", "").split())
        if not words:
            continue
        kind, _, names = words.partition(" ")
        for field in names.split(","):
            if kind.endswith("*") or field.strip().startswith("*"):
                fields.append((field.strip(" *"), ctypes.c_void_p))
            else:
                fields.append((field.strip(), TYPES.get(kind) or structure(kind)))
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def test_formats_are_the_header_s_structure():
    """Every field packed with a value of its own is found under its name."""
    attention = structure("warploom_attention")
    assert ctypes.sizeof(attention) == _layout.STRUCT_BYTES
    pieces = [_layout.TENSORS_BACKWARD, _layout.LENGTHS_MASK_SCALARS, _layout.BIAS, _layout.TAIL]
    counts = [len(piece.unpack(bytes(piece.size))) for piece in pieces]
    numbers = iter(range(1, sum(counts) + 1))
    packed = b"".join(
        piece.pack(*(next(numbers) for _ in range(count))) for piece, count in zip(pieces, counts, strict=True)
    )

    def leaves(value: ctypes.Structure) -> list[float]:
        found = []
        for name, _ in value._fields_:
            field = getattr(value, name)
            found += leaves(field) if isinstance(field, ctypes.Structure) else [field]
        return found

    assert leaves(attention.from_buffer_copy(packed)) == list(range(1, sum(counts) + 1))


def test_constants_are_the_header_s():
    for name in (
        "HAS_ALPHA",
        "HAS_DIVISOR",
        "BIAS_NOT_SCALED",
        "WINDOW_FROM_HISTORY_END",
        "DETERMINISTIC",
        "CHECK_INPUTS",
        "BIAS_GRAD_PADDED",
    ):
        bit = re.search(rf"WARPLOOM_{name} \(1u << (\d+)\)", HEADER)
        assert bit is not None
        assert getattr(_layout, name) == 1 << int(bit[1])
    for name, value in re.findall(r"WARPLOOM_(\w+) = (\d+)", HEADER):
        if hasattr(_layout, name):
            assert getattr(_layout, name) == int(value), name
    version = re.search(r"WARPLOOM_ABI_VERSION (\d+)u", HEADER)
    assert version is not None
    assert int(version[1]) == _layout.ABI_VERSION


IMPOSTOR = """
#include <string.h>
#include "warploom/warploom.h"
const char* warploom_version(void) { return "9.9.9"; }
unsigned warploom_abi_version(void) { return ABI; }
const char* warploom_last_error(void) { return ""; }
void warploom_attention_init(warploom_attention* c) { memset(c, 0, 16); c->abi_version = ABI; c->struct_bytes = BYTES; }
#define NOTHING(name) int name(void) { return 0; }
NOTHING(warploom_validate) NOTHING(warploom_run) NOTHING(warploom_warmup) NOTHING(warploom_explain)
NOTHING(warploom_devices) NOTHING(warploom_info) NOTHING(warploom_set_num_threads)
NOTHING(warploom_get_num_threads) NOTHING(warploom_add_library_directory) NOTHING(warploom_free)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(("abi", "size"), [(0, 800), (2, 800), (1, 8), (1, 4000)])
def test_library_of_another_release_is_refused(tmp_path, abi, size):
    """An older and a newer library: the import says so, whatever the structures hold."""
    lines = [line for line in IMPOSTOR.splitlines() if "include" not in line]
    declarations = (
        "#include <string.h>\ntypedef struct { unsigned abi_version, struct_bytes; long rest; } warploom_attention;\n"
    )
    source = tmp_path / "impostor.c"
    source.write_text(declarations + "\n".join(lines))
    package = tmp_path / "warploom"
    shutil.copytree(Path(wl.__file__).parent, package, ignore=shutil.ignore_patterns("lib", "bin", "__pycache__"))
    (package / "lib").mkdir()
    target = package / "lib" / "libwarploom.so"
    subprocess.run(["cc", "-shared", "-fPIC", f"-DABI={abi}", f"-DBYTES={size}", source, "-o", target], check=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", "import warploom"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0
    assert "ImportError" in done.stderr
    assert "different releases" in done.stderr


def test_missing_library_says_where_it_was_looked_for(tmp_path):
    shutil.copytree(
        Path(wl.__file__).parent, tmp_path / "warploom", ignore=shutil.ignore_patterns("lib", "bin", "__pycache__")
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "WARPLOOM_LIBRARY": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", "import warploom"], capture_output=True, text=True, env=environment, check=False
    )
    assert "libwarploom.so is not in" in done.stderr
    assert "/nowhere" in done.stderr


def test_version_is_the_library_s():
    assert wl.__version__ == _library.library.warploom_version().decode()
    project = re.search(r"project\(warploom VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert project is not None
    assert wl.__version__ == project[1]


def test_devices_list_the_cpu_first():
    devices = wl.devices()
    assert devices[0]["kind"] == "cpu"
    assert all({"name", "kind", "architecture"} <= set(device) for device in devices)
    assert isinstance(wl.info(), dict)


@pytest.mark.parametrize("function", ["warploom_devices", "warploom_info"])
def test_null_text_is_an_error(function):
    with pytest.raises(ValueError, match="text is null"):
        _library.check(getattr(_library.library, function)(None))


def test_a_result_in_an_inputs_memory_is_refused_by_a_run(monkeypatch):
    q, k, v = torch.randn(3, 12, 2, 16)
    before = v.clone()
    monkeypatch.setattr(_torch._backend, "empty", lambda shape, like: v, raising=False)
    with pytest.raises(ValueError, match="out is written and shares memory with v"):
        wl.hstu_attention(q, k, v, torch.tensor([0, 12]))
    assert torch.equal(v, before)


def test_threads_are_settable():
    before = wl.get_num_threads()
    try:
        wl.set_num_threads(3)
        assert wl.get_num_threads() == 3
        with pytest.raises(ValueError, match="count = -1"):
            wl.set_num_threads(-1)
        with pytest.raises(ValueError, match="count = 4097 is above the limit"):
            wl.set_num_threads(4097)
        with pytest.raises(TypeError, match="count"):
            wl.set_num_threads(1.5)
    finally:
        wl.set_num_threads(before)


# --- plans ------------------------------------------------------------------------------------------------------------

SHAPES = ((4096, 4, 64), (4096, 4, 64), (4096, 4, 32))


@pytest.mark.parametrize("op", ["hstu", "softmax"])
@pytest.mark.parametrize("backward", [False, True])
def test_explain_needs_shapes_only(op, backward):
    bias = wl.BucketedBias(position=(1, 256), time=(4, 64), timestamps=(4096,))
    mask = wl.Mask(right=0, num_targets=[3, 0])
    plan = wl.explain(*SHAPES, [0, 1000, 4096], op=op, backward=backward, dtype="float32", bias=bias, mask=mask)
    assert isinstance(plan, dict)
    assert plan


def test_explain_takes_the_tensors_of_a_call():
    q = torch.randn(12, 2, 16)
    assert wl.explain(q, q, q, torch.tensor([0, 5, 12])) == wl.explain(*[(12, 2, 16)] * 3, [0, 5, 12], dtype="float32")


def test_explain_takes_a_dense_batch():
    assert wl.explain(*[(2, 64, 4, 32)] * 3, bias=wl.DenseBias((1, 1, 64, 64)))


def test_explain_counts_operations_to_the_last_one():
    shape = (2**13 + 1, 4, 128)
    plan = wl.explain(shape, shape, shape, [0, shape[0]], op="softmax", dtype="float32")
    assert plan["flops"] == 4 * shape[0] ** 2 * 128 * 4


def test_explain_refuses_what_the_call_refuses():
    with pytest.raises(ValueError, match="cu_seqlens_q"):
        wl.explain(*SHAPES, [0, 5000])
    with pytest.raises(ValueError, match=re.escape(f"cu_seqlens_q[1] = {2**64} does not fit int64")):
        wl.explain(*SHAPES, [0, 2**64])
    with pytest.raises(ValueError, match=re.escape(f"num_targets[0] = {2**32} does not fit int32")):
        wl.explain(*SHAPES, [0, 4096], mask=wl.Mask(right=0, num_targets=[2**32]))
    with pytest.raises(TypeError, match="cu_seqlens_q is a list that holds"):
        wl.explain(*SHAPES, [0, 4096.0])
    with pytest.raises(ValueError, match="op = "):
        wl.explain(*SHAPES, [0, 4096], op="linear")
    with pytest.raises(TypeError, match="softcap"):
        wl.explain(*SHAPES, [0, 4096], softcap=1.0)
    with pytest.raises(TypeError, match="num_targets"):
        wl.explain(*SHAPES, [0, 4096], mask=wl.Mask(right=0, num_targets=1.5))
    with pytest.raises(ValueError, match="device"):
        wl.explain(*SHAPES, [0, 4096], device="tpu")
    with pytest.raises(TypeError, match="float32"):
        wl.explain(*SHAPES, [0, 4096], device="cuda", dtype="float32")


def test_warmup_checks_and_returns_nothing():
    assert wl.warmup(*SHAPES, [0, 4096]) is None
    with pytest.raises(ValueError, match="left"):
        wl.warmup(*SHAPES, [0, 4096], mask=wl.Mask(left=-2))


def test_plan_for_a_gpu_without_one_says_so():
    if any(device["kind"] == "cuda" for device in wl.devices()):
        assert wl.explain(*SHAPES, [0, 4096], device="cuda")
    else:
        with pytest.raises(RuntimeError, match="CUDA"):
            wl.explain(*SHAPES, [0, 4096], device="cuda")


# --- the command ------------------------------------------------------------------------------------------------------


def test_python_m_warploom_is_the_command():
    done = subprocess.run([sys.executable, "-m", "warploom", "--help"], capture_output=True, text=True, check=False)
    if "the command is in none of" in done.stderr:
        pytest.skip("the command is not built here")
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout
