"""tools/gpu_check's own logic: what makes an entry stale, how records are merged, how results are judged."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import gpu_checks  # noqa: E402
import gpu_device_tests  # noqa: E402
import gpu_driver  # noqa: E402
import gpu_hopper_tests  # noqa: E402
import gpu_reference  # noqa: E402
import gpu_sanitizer  # noqa: E402
import gpu_split_checks  # noqa: E402
import gpu_torch_checks  # noqa: E402
import gpu_trace_checks  # noqa: E402
from gpu_cases import (  # noqa: E402
    BENCHMARKS,
    CEILINGS,
    DEVICE_TESTS,
    PROBLEMS,
    SPECIAL_CHECKS,
    SPLIT_CHECKS,
    TORCH_CHECKS,
    TRACES,
    all_items,
)
from gpu_report import Item, Report, expanded_files, sources_sha256, without_comments  # noqa: E402


@pytest.fixture
def tool() -> Any:
    loader = importlib.machinery.SourceFileLoader("gpu_check_tool", str(ROOT / "tools" / "gpu_check"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project: a kernel that includes two headers, one of them through the other, and a host file."""
    files = {
        "kernels/attention/a.cu": '#include "ptx/x.h"\nint a = 1;\n',
        "kernels/ptx/x.h": '#pragma once\n#include "ptx/y.h"\n',
        "kernels/ptx/y.h": "int y;\n",
        "kernels/ptx/unused.h": "int unused;\n",
        "src/gpu/plan.cpp": '#include "gpu/plan.h"\nint plan;\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


SOURCES = ("kernels/attention/a.cu", "src/gpu/plan.cpp")
CHECK = Item("checks", "one", SOURCES)
SANITIZED = Item("sanitizer", "memcheck/one", SOURCES)
BENCH = Item("bench", "case", SOURCES, ("warploom", "fa2"))


def digest(root: Path) -> str:
    sources_sha256.cache_clear()
    return sources_sha256(SOURCES, root)


def report(root: Path, path: str = "reports/gpu.json") -> Report:
    sources_sha256.cache_clear()
    made = Report([CHECK, SANITIZED, BENCH], root / path, root)
    made.load(root / path)
    return made


def filled(root: Path) -> Report:
    made = report(root)
    made.put(CHECK, [{"case": "one", "ok": True, "error": 0.0, "limit": 1.0}], "2026-01-01")
    made.put(SANITIZED, [{"tool": "memcheck", "case": "one", "errors": 0}], "2026-01-01")
    bench = [{"case": "case", "implementation": name, "median_ms": 1.0} for name in ("warploom", "fa2")]
    made.put(BENCH, bench, "2026-01-01")
    return made


def test_headers_are_followed_below_kernels_only(tree: Path) -> None:
    names = [str(path.relative_to(tree)) for path in expanded_files(SOURCES, tree)]
    assert names == ["kernels/attention/a.cu", "kernels/ptx/x.h", "kernels/ptx/y.h", "src/gpu/plan.cpp"]


def test_comments_and_white_space_do_not_change_the_hash(tree: Path) -> None:
    before = digest(tree)
    (tree / "kernels/ptx/y.h").write_text("// what y is\n  int   y; /* two\nlines */\n\n")
    assert digest(tree) == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kernels/attention/a.cu", '#include "ptx/x.h"\nint a = 2;\n'),
        ("kernels/ptx/y.h", "int z;\n"),
        ("src/gpu/plan.cpp", '#include "gpu/plan.h"\nint plan = 3;\n'),
    ],
)
def test_code_changes_the_hash(tree: Path, name: str, text: str) -> None:
    before = digest(tree)
    (tree / name).write_text(text)
    assert digest(tree) != before


def test_a_header_that_is_not_included_does_not_count(tree: Path) -> None:
    before = digest(tree)
    (tree / "kernels/ptx/unused.h").write_text("int other;\n")
    assert digest(tree) == before


def test_strings_are_no_comments() -> None:
    assert (
        without_comments('f("// not a comment", \'"\', "a\\"/*"); // one') == 'f("// not a comment", \'"\', "a\\"/*");'
    )


def test_an_empty_report_is_stale(tree: Path) -> None:
    fine, line = report(tree).status()
    assert not fine
    assert line.startswith("stale: 3 of the entries: checks/one (missing)")


def test_a_complete_report_is_fresh_and_survives_a_round_trip(tree: Path) -> None:
    filled(tree)
    again = report(tree)
    assert again.status() == (True, "fresh")
    assert again.records[CHECK.key][0]["date"] == "2026-01-01"


def test_changed_sources_make_stale(tree: Path) -> None:
    filled(tree)
    (tree / "kernels/ptx/y.h").write_text("int z;\n")
    fine, line = report(tree).status()
    assert not fine
    assert "sanitizer/memcheck/one (changed)" in line


def test_a_missing_implementation_makes_stale(tree: Path) -> None:
    made = filled(tree)
    made.put(BENCH, [{"case": "case", "implementation": "warploom", "median_ms": 1.0}], "2026-01-02")
    assert [item for item, _ in made.stale()] == [BENCH]


def test_failures_are_named(tree: Path) -> None:
    made = filled(tree)
    made.put(CHECK, [{"case": "one", "ok": False, "error": 2.0, "limit": 1.0}], "2026-01-02")
    made.put(SANITIZED, [{"tool": "memcheck", "case": "one", "errors": -1}], "2026-01-02")
    assert report(tree).status() == (False, "failed: 2 of the entries: checks/one, sanitizer/memcheck/one")


def test_new_records_replace_old_ones_and_the_rest_stays(tree: Path) -> None:
    made = filled(tree)
    made.put(CHECK, [{"case": "one", "ok": True, "error": 0.5, "limit": 1.0}], "2026-02-02")
    held = json.loads((tree / "reports/gpu.json").read_text())
    assert [record["error"] for record in held["checks"]] == [0.5]
    assert len(held["bench"]) == 2


def test_records_of_what_no_longer_exists_are_dropped(tree: Path) -> None:
    filled(tree)
    less = Report([CHECK], tree / "reports/gpu.json", tree)
    less.load(tree / "reports/gpu.json")
    less.save()
    held = json.loads((tree / "reports/gpu.json").read_text())
    assert (len(held["checks"]), held["sanitizer"], held["bench"]) == (1, [], [])


def test_a_report_elsewhere_starts_from_the_one_that_is_there(tree: Path) -> None:
    filled(tree)
    elsewhere = Report([CHECK, SANITIZED, BENCH], tree / "out/gpu.json", tree)
    elsewhere.load(tree / "reports/gpu.json")
    elsewhere.put(CHECK, [{"case": "one", "ok": True, "error": 0.25, "limit": 1.0}], "2026-02-02")
    assert report(tree, "out/gpu.json").status() == (True, "fresh")


def test_every_entry_is_named_once_and_its_sources_exist() -> None:
    items = all_items()
    assert len({item.key for item in items}) == len(items)
    for item in items:
        assert all((ROOT / source).is_file() for source in item.sources), item
    assert "hstu-uniform-B8-L4096-H4-D128-causal-ctx4-tgt64-bf16" in BENCHMARKS
    assert "hstu-jagged-B64-L256..2048-H4-D128-causal-bf16" in BENCHMARKS


def test_every_named_check_has_a_function() -> None:
    assert {*gpu_device_tests.TESTS, *gpu_hopper_tests.TESTS} == set(DEVICE_TESTS)
    assert set(gpu_checks.SPECIAL) == set(SPECIAL_CHECKS)
    assert set(gpu_split_checks.SPLIT) == set(SPLIT_CHECKS)
    assert set(gpu_torch_checks.TORCH) == set(TORCH_CHECKS)


def test_a_trace_that_lacks_something_is_refused() -> None:
    for name, trace in TRACES.items():
        good: dict[str, Any] = {
            "order": {"checked": 500, "violations": []},
            "lost": 0,
            "busy": dict.fromkeys(trace.lanes, 7),
        }
        assert gpu_trace_checks.faults_of(trace.lanes, good) == [], name
        assert gpu_trace_checks.faults_of(trace.lanes, good | {"lost": 3}) == ["3 marks lost"]
        late = {"checked": 500, "violations": ["K filling 2 was loaded too early"]}
        assert gpu_trace_checks.faults_of(trace.lanes, good | {"order": late}) == late["violations"]
        few = {"checked": 20, "violations": []}
        assert "only 20 pairs" in gpu_trace_checks.faults_of(trace.lanes, good | {"order": few})[0]
        idle = good["busy"] | {trace.lanes[0]: 0}
        assert gpu_trace_checks.faults_of(trace.lanes, good | {"busy": idle}) == [
            f"nothing on the lanes {trace.lanes[0]}"
        ]


def test_every_head_dimension_is_checked_in_both_places() -> None:
    assert {problem.dim for problem in PROBLEMS.values()} >= set(range(8, 257, 8))
    assert {problem.value_dim for problem in PROBLEMS.values()} >= set(range(8, 257, 8))


def test_problems_are_legal() -> None:
    for p in PROBLEMS.values():
        slots_k = p.slots_q if p.slots_k is None else p.slots_k
        assert len(slots_k) == len(p.slots_q), p.name
        used_q, used_k = (
            slots if used is None else [used if s else 0 for s in slots] if isinstance(used, int) else used
            for slots, used in ((p.slots_q, p.used_q), (slots_k, p.used_k))
        )
        assert p.softmax or all(q <= k for q, k in zip(used_q, used_k, strict=True)), p.name
        for counts in (p.contexts, p.targets):
            if isinstance(counts, tuple):
                assert all(0 <= count <= length for count, length in zip(counts, used_k, strict=True)), p.name


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([], True),
        (["one"], True),
        (["checks/*"], True),
        (["bench"], False),
        (["bench", "one"], True),
        (["one*"], False),
    ],
)
def test_patterns(tool: Any, patterns: list[str], expected: bool) -> None:
    assert tool.matches(CHECK, patterns) is expected


def test_status_needs_no_gpu_and_says_what_it_found() -> None:
    done = subprocess.run([str(ROOT / "tools" / "gpu_check"), "--status"], capture_output=True, text=True)
    assert done.stderr == ""
    assert (done.returncode == 0) == (done.stdout == "fresh\n")
    assert done.stdout.startswith(("fresh", "stale: ", "failed: "))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_worker_answers_with_what_failed(tool: Any) -> None:
    worker = tool.Worker()
    answer = worker.ask("checks", "device-mma-products")
    worker.close()
    assert "libcuda" in answer["failure"]


def test_a_worker_that_dies_is_a_failure_and_the_next_one_works(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = tool.Worker()
    monkeypatch.setattr(tool, "CASE_TIMEOUT_S", 0.0)
    assert "process ended" in worker.ask("checks", "device-mma-products")["failure"]
    monkeypatch.setattr(tool, "CASE_TIMEOUT_S", 60.0)
    assert "no-such" in worker.ask("checks", "device-no-such")["failure"]
    worker.close()


IMPLEMENTATIONS = {item.name: item.implementations for item in all_items() if item.section == "bench"}


class FakeWorker:
    """Answers as a GPU machine would; `broken` names an entry that fails."""

    broken = ""

    def ask(self, section: str, name: str) -> dict[str, Any]:
        if section == "machine":
            return {"machine": {"gpu": "fake", "driver": "1", "nvrtc": "13.0"}}
        if name == self.broken:
            return {"failure": "RuntimeError: broken"}
        if section == "checks":
            return {"records": [{"case": name, "ok": True, "error": 1e-3, "limit": 2e-3}]}
        if section == "sanitizer":
            tool, case = name.split("/")
            return {"records": [{"tool": tool, "case": case, "errors": 0}]}
        timed = CEILINGS.get(name, (*IMPLEMENTATIONS[name], "fa2"))
        rounds = [(implementation, number) for implementation in timed for number in (1, 2)]
        times = {"median_ms": 2.0, "tflops": 0.0 if "copy" in name else 100.0, "bytes": 10**10}
        return {"records": [{"case": name, "implementation": i, "round": n, **times} for i, n in rounds]}

    def close(self) -> None:
        pass


def test_a_whole_run_ends_fresh(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "Worker", FakeWorker)
    items = all_items()
    made = Report(items, tmp_path / "gpu.json")
    assert tool.run(made, items)
    tool.print_summary(made)
    assert made.status() == (True, "fresh")
    held = json.loads((tmp_path / "gpu.json").read_text())
    assert held["gpu"] == "fake"
    assert all(
        set(record) >= {"date", "sources_sha256"} for part in ("checks", "sanitizer", "bench") for record in held[part]
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < sum(item.section == "bench" for item in items) + 50  # checks are only counted
    assert any("  warploom 2.000 100 1.00" in line for line in lines)
    assert any("5.00TB" in line for line in lines)


@pytest.mark.parametrize("broken", ["forward-decode", "memcheck/copies", "copy-4GiB"])
def test_a_broken_entry_is_recorded_and_the_others_run(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setattr(tool, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "broken", broken)
    items = [item for item in all_items() if "decode" in item.name or item.section != "checks"]
    made = Report(items, tmp_path / "gpu.json")
    assert not tool.run(made, items)
    fine, line = made.status()
    assert not fine
    assert broken in line
    assert line.count(",") == 0


@pytest.mark.parametrize(
    ("output", "errors"),
    [
        ("========= ERROR SUMMARY: 0 errors\n", 0),
        ("========= ERROR SUMMARY: 12 errors\n", 12),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", 2),
        ("========= Device not supported\n", -1),
    ],
)
def test_sanitizer_summaries(output: str, errors: int) -> None:
    assert gpu_sanitizer.errors_of(output) == errors


@pytest.mark.parametrize("source", sorted(set(DEVICE_TESTS.values())))
def test_device_tests_compile(source: str) -> None:
    try:
        gpu_driver.find_nvrtc()
    except gpu_driver.CudaError as error:
        pytest.skip(str(error))
    defines = gpu_hopper_tests.width_defines(16) if source == "tests/device/wgmma_test.cu" else ()
    assert gpu_driver.compile_file(ROOT / source, "sm_90a", defines)


def test_roundings_are_torchs() -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    tensor = torch.from_numpy(values)
    expected = {"bf16": tensor.bfloat16(), "fp16": tensor.half()}
    for kind, rounded in expected.items():
        assert np.array_equal(gpu_device_tests.ROUND[kind](values), rounded.view(torch.uint16).numpy())
        assert np.array_equal(gpu_device_tests.as_float(gpu_device_tests.ROUND[kind](values), kind), rounded.float())


# The judge on the CPU's results: what it takes and what it must not take.


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_checks, "DEVICE", "cpu")


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", ["mask-ctx-tgt-window-end-delta-q", "intervals3-per-head", "used", "divisor-rows"])
def test_the_judge_takes_rounded_results_only(name: str) -> None:
    problem = PROBLEMS[name]
    inputs, _ = gpu_checks.build(problem, seed=1)
    exact = gpu_reference.forward(problem, inputs, torch.float64).out
    right = exact.to(inputs.q.dtype)
    assert gpu_reference.judge(problem, inputs, right).ok
    row = int(exact.norm(dim=2).sum(dim=1).argmax())
    for wrong_by in (1.02, 0.0, float("nan")):
        wrong = right.clone()
        wrong[row] = wrong[row] * wrong_by
        assert not gpu_reference.judge(problem, inputs, wrong).ok, wrong_by
    absent = (exact == 0).all(dim=2).nonzero()
    if len(absent):
        wrong = right.clone()
        wrong[tuple(absent[-1])] = 1e-3
        assert not gpu_reference.judge(problem, inputs, wrong).ok


@pytest.mark.usefixtures("on_cpu")
def test_the_judge_sees_one_wrong_column_in_a_mask() -> None:
    problem = PROBLEMS["mask-causal-window"]
    inputs, _ = gpu_checks.build(problem, seed=2)
    other = gpu_reference.forward(replace(problem, left=99), inputs, torch.float64).out.to(inputs.q.dtype)
    assert not gpu_reference.judge(problem, inputs, other).ok


@pytest.mark.usefixtures("on_cpu")
def test_the_judge_sees_a_tail_that_is_cut_off() -> None:
    problem = PROBLEMS["tail-bf16-20"]
    inputs, _ = gpu_checks.build(problem, seed=3)
    exact = gpu_reference.forward(problem, inputs, torch.float64).out
    assert gpu_reference.judge(problem, inputs, exact.to(inputs.q.dtype)).ok
    assert not gpu_reference.judge(problem, inputs, torch.zeros_like(exact)).ok
