"""compute-sanitizer over small calls, one process for each tool and case."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_report import ROOT, Record

TIMEOUT_S = 150
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
_PLACES = (
    "/usr/local/cuda/bin/compute-sanitizer",
    "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
    "/opt/nvidia/compute-sanitizer/compute-sanitizer",
)


def find() -> str | None:
    return shutil.which("compute-sanitizer") or next((place for place in _PLACES if Path(place).is_file()), None)


def errors_of(output: str) -> int:
    """The number that a run's summary names; -1 when there is none, as the tool could not work then."""
    found = _SUMMARY.findall(output)
    return sum(map(int, found)) if found else -1


def run(name: str) -> list[Record]:
    """name: TOOL/CASE."""
    tool, case = name.split("/")
    program = find()
    if program is None:
        return [{"tool": tool, "case": case, "errors": -1, "message": "compute-sanitizer was not found"}]
    options = ["--tool", tool, "--error-exitcode", "0", "--print-limit", "5"]
    if tool == "racecheck":
        options += ["--racecheck-report", "analysis"]
    command = [program, *options, sys.executable, str(ROOT / "tools" / "gpu_check"), "--sanitizer-child", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return [{"tool": tool, "case": case, "errors": -1, "message": f"no end after {TIMEOUT_S} s"}]
    output = done.stdout + done.stderr
    errors = errors_of(output)
    record: Record = {"tool": tool, "case": case, "errors": errors}
    if errors == 0 and done.returncode != 0:
        record["errors"] = -1
    if record["errors"] != 0:
        record["message"] = _interesting(output)
    return [record]


def _interesting(output: str) -> str:
    """The first lines that say what is wrong."""
    lines = [line.removeprefix("=========").strip() for line in output.splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "Host Frame", "Saved host"))]
    return "\n".join(wanted[:12])[:1200]
