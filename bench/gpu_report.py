"""reports/gpu.json: what was proved and measured on a GPU, and which of it the sources have left behind.

An item is one unit of work (a check, a sanitizer run, a benchmark case) and the files whose code it ran. Its records
carry the hash of those files, comments and white space aside, so that an entry is stale exactly when code that it ran
has changed. Standard library only: this runs where there is no GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
EXAMPLES = ROOT / "examples"

# The host files that choose, plan and launch the kernels: the one list of them.
HOST_FILES = (
    "src/gpu/attention.cpp",
    "src/gpu/choose_plan.cpp",
    "src/gpu/device_call.cpp",
    "src/gpu/launch_plan.cpp",
    "src/gpu/module.cpp",
    "src/gpu/module.h",
    "src/gpu/plan.cpp",
    "src/gpu/plan.h",
    "src/gpu/scratch.cpp",
)
FORWARD = (
    "kernels/attention/attention_forward_mma.cu",
    "src/gpu/mma_forward_plan.cpp",
    "src/gpu/mma_forward_plan.h",
    *HOST_FILES,
)
# Short queries: their parts and what adds them up. Calls with lengths of keys of their own run it beside the others.
SPLIT = (
    "kernels/attention/attention_combine.cu",
    "kernels/attention/attention_forward_split.cu",
    "src/gpu/mma_forward_plan.cpp",
    "src/gpu/mma_forward_plan.h",
    "src/gpu/split_plan.cpp",
    "src/gpu/split_plan.h",
    *HOST_FILES,
)
BACKWARD = (
    "kernels/attention/attention_backward_bias_mma.cu",
    "kernels/attention/attention_backward_dq_mma.cu",
    "kernels/attention/attention_backward_mma.cu",
    "kernels/attention/backward_dq_sums.cu",
    "kernels/attention/backward_row_terms.cu",
    "kernels/attention/backward_table_sums.cu",
    "kernels/attention/backward_table_totals.cu",
    "src/gpu/backward_around.cpp",
    "src/gpu/backward_bias_plan.cpp",
    "src/gpu/backward_plan.cpp",
    "src/gpu/backward_tiles.cpp",
    *HOST_FILES,
)

# What users' functions add to the kernels through mma.sync.
FUNCTIONS = (
    "kernels/attention/mask_intervals.cu",
    "kernels/attention/mask_math.h",
    "kernels/attention/score_math.h",
    "src/expression/device_text.cpp",
    "src/expression/differentiate.cpp",
    "src/expression/functions.cpp",
    "src/expression/graph.cpp",
    "src/expression/parse.cpp",
    "src/gpu/mask_intervals.cpp",
    "src/gpu/user_score.cpp",
)

# The Hopper kernel, which takes what it can of the forward calls on an H200; mma.sync kernels take the rest.
HOPPER_FORWARD = (
    "kernels/attention/attention_forward_hopper.cu",
    "src/gpu/attention_maps.cpp",
    "src/gpu/hopper_forward_plan.cpp",
    "src/gpu/hopper_forward_plan.h",
    "src/gpu/tensor_map.cpp",
    *HOST_FILES,
)
# The Hopper kernels of the backward pass, which take what they can of its calls there.
HOPPER_BACKWARD = (
    "kernels/attention/attention_backward_dq_hopper.cu",
    "kernels/attention/attention_backward_hopper.cu",
    "kernels/attention/attention_backward_keys_hopper.cu",
    "kernels/attention/backward_dq_sums.cu",
    "kernels/attention/backward_row_terms.cu",
    "src/gpu/attention_maps.cpp",
    "src/gpu/backward_around.cpp",
    "src/gpu/hopper_backward_plan.cpp",
    "src/gpu/hopper_backward_plan.h",
    "src/gpu/hopper_two_kernel_plan.cpp",
    "src/gpu/hopper_two_kernel_plan.h",
    "src/gpu/tensor_map.cpp",
    *HOST_FILES,
)
# What reads the marks of a kernel.
TRACER = (
    "src/trace/order.cpp",
    "src/trace/recording.cpp",
    "src/trace/subject.cpp",
    "src/trace/timeline.cpp",
    "src/trace/traced_run.cpp",
)
Record = dict[str, Any]
SECTIONS = ("checks", "sanitizer", "bench")


@dataclass(frozen=True)
class Item:
    """section: one of SECTIONS. name: unique in its section. sources: the files whose code it runs, from the root;
    `#include "..."` in them is followed below kernels/. implementations: what a benchmark's records must name."""

    section: str
    name: str
    sources: tuple[str, ...]
    implementations: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.section}/{self.name}"


def without_comments(text: str) -> str:
    """C++ text with comments removed and white space collapsed; strings are left as they are."""

    def replace(match: re.Match[str]) -> str:
        return match[0] if match[0][0] in "\"'" else " "

    token = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/'
    lines = re.sub(token, replace, text, flags=re.DOTALL).splitlines()
    return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))


def expanded_files(sources: Iterable[str], root: Path = ROOT) -> list[Path]:
    """The sources and, for device code, every header of kernels/ and examples/ that they include, sorted."""
    found: set[Path] = set()
    waiting = [root / source for source in sources]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if (root / "src") in path.parents:
            continue  # a host file stands for itself: the call's checks have tests of their own
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), flags=re.MULTILINE):
            header = root / "kernels" / name
            waiting.append(header if header.is_file() else root / "examples" / name)
    return sorted(found)


@cache
def sources_sha256(sources: tuple[str, ...], root: Path = ROOT) -> str:
    digest = hashlib.sha256()
    for path in expanded_files(sources, root):
        digest.update(f"{path.relative_to(root)}\0{without_comments(path.read_text())}\0".encode())
    return digest.hexdigest()


def item_name(section: str, record: Record) -> str:
    """The name of the item that a record belongs to."""
    if section == "sanitizer":
        return f"{record['tool']}/{record['case']}"
    return f"{record['case']}/backward" if record.get("pass") == "backward" else str(record["case"])


def failed(section: str, record: Record) -> bool:
    if section == "checks":
        return not record["ok"]
    return section == "sanitizer" and record["errors"] != 0


class Report:
    """The report of one file. Records of items that no longer exist are dropped when it is saved."""

    def __init__(self, items: Iterable[Item], path: Path, root: Path = ROOT) -> None:
        self.items = list(items)
        self.path = path
        self.root = root
        self.machine: dict[str, str] = {"gpu": "", "driver": "", "nvrtc": ""}
        self.records: dict[str, list[Record]] = {}

    def load(self, path: Path) -> None:
        """Takes over the records of a file, if it is there."""
        if not path.is_file():
            return
        held = json.loads(path.read_text())
        self.machine = {field: held.get(field, "") for field in self.machine}
        for section in SECTIONS:
            for record in held.get(section, []):
                self.records.setdefault(f"{section}/{item_name(section, record)}", []).append(record)

    def put(self, item: Item, records: list[Record], date: str) -> None:
        """Replaces an item's records and saves."""
        stamp = {"date": date, "sources_sha256": sources_sha256(item.sources, self.root)}
        self.records[item.key] = [{**record, **stamp} for record in records]
        self.save()

    def save(self) -> None:
        held: dict[str, Any] = dict(self.machine)
        for section in SECTIONS:
            items = (item for item in self.items if item.section == section)
            held[section] = [record for item in items for record in self.records.get(item.key, [])]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        # One record a line: a change of one entry is a change of one line.
        lines = [f"  {json.dumps(key)}: {json.dumps(held[key])}" for key in self.machine]
        for section in SECTIONS:
            body = ",\n".join(f"    {json.dumps(record)}" for record in held[section])
            lines.append(f'  "{section}": [\n{body}\n  ]' if body else f'  "{section}": []')
        part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        part.replace(self.path)

    def staleness(self, item: Item) -> str:
        """Why the item's records do not stand: "missing", "changed" (its sources), or "" when they do."""
        records = self.records.get(item.key, [])
        present = {record.get("implementation") for record in records}
        if not records or not present.issuperset(item.implementations):
            return "missing"
        expected = sources_sha256(item.sources, self.root)
        return "" if all(record["sources_sha256"] == expected for record in records) else "changed"

    def stale(self) -> list[tuple[Item, str]]:
        return [(item, why) for item in self.items if (why := self.staleness(item))]

    def failures(self) -> list[Item]:
        return [item for item in self.items if any(failed(item.section, r) for r in self.records.get(item.key, []))]

    def status(self) -> tuple[bool, str]:
        """(whether everything is fresh and passed, one line that says so)."""
        stale, broken = self.stale(), self.failures()
        parts = []
        if stale:
            parts.append("stale: " + _shortened([f"{item.key} ({why})" for item, why in stale]))
        if broken:
            parts.append("failed: " + _shortened([item.key for item in broken]))
        return not parts, "; ".join(parts) or "fresh"


def _shortened(names: list[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} of the entries: " + ", ".join(names[:most]) + more
