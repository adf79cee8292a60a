"""Runs checks of tools/gpu_check on the emulated GPU, with tensors in the CPU's memory (docs/emulator.md).

    tests/emulator/run python tests/emulator/gpu_check_case.py [--limit SECONDS] [--jobs N] PATTERN...

Patterns as for tools/gpu_check --only. A line for each entry; exit status 1 when one failed. Entries that need a real
GPU (streams, graphs, timing, 2^31 elements) are left out.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]


def run_one(name: str) -> int:
    os.environ["WARPLOOM_EMULATOR_HOST_MEMORY"] = "1"
    import torch

    torch.cuda.synchronize = lambda *_: None  # type: ignore[assignment]
    torch.set_num_threads(1)
    import gpu_checks
    import gpu_driver
    from warploom import _describe, _layout

    gpu_checks.DEVICE = "cpu"
    import gpu_gemm

    gpu_gemm.DEVICE = "cpu"
    gpu_driver.find_nvrtc = lambda: ctypes.CDLL("libnvrtc.so.13")
    _describe.pads_gradients = lambda values: True
    _describe._device_fields = lambda q, backend: (_layout.CUDA, 0, 0)
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "tools" / "gpu_check"))
    specification = importlib.util.spec_from_loader("gpu_check", loader)
    assert specification is not None
    gpu_check = importlib.util.module_from_spec(specification)
    sys.modules["gpu_check"] = gpu_check
    loader.exec_module(gpu_check)
    failed = False
    for record in gpu_check.run_item("checks", name):
        failed = failed or not record["ok"]
        print(f"error {record['error']:.3g} of {record['limit']:.3g} {record.get('message', '')[:600]}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return run_one(arguments.one)
    from gpu_cases import all_items

    names = [
        item.name
        for item in all_items()
        if item.section == "checks"
        and any(fnmatch.fnmatch(item.name, p if set(p) & set("*?") else f"*{p}*") for p in arguments.patterns)
    ]

    def run(name: str) -> str:
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=arguments.limit
            )
            words = "ok" if done.returncode == 0 else "FAILED"
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            text = done.stdout.strip() if done.returncode == 0 else " | ".join(lines[-3:])[-900:]
        except subprocess.TimeoutExpired:
            words, text = "late", ""
        line = f"{words:7}{time.monotonic() - begin:6.1f} s  {name}  {text}"
        print(line, flush=True)
        return words

    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(run, names))
    print({word: results.count(word) for word in sorted(set(results))})
    return 1 if "FAILED" in results else 0


if __name__ == "__main__":
    raise SystemExit(main())
