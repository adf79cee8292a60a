"""The documents: their links lead somewhere, and the README's programs run as printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(document: Path) -> set[str]:
    """GitHub's anchors of a document's headings: lower case, punctuation dropped, spaces become hyphens."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def programs(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def readme_program(language: str) -> str:
    (program,) = programs("README.md", language)
    return program


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "readme.py").write_text(readme_program("python"))
    assert run(sys.executable, tmp_path / "readme.py", cwd=tmp_path).startswith("(353, 4, 64) (353, 4, 64)")


def test_the_page_on_python_runs_as_printed(tmp_path: Path) -> None:
    parts = programs("docs/python.md", "python")
    assert len(parts) >= 5
    (tmp_path / "page.py").write_text("\n".join(parts))
    assert run(sys.executable, tmp_path / "page.py", cwd=tmp_path).startswith("cpu ")


def test_the_commands_of_the_pages_are_ones_that_the_command_takes(installed_tree: Path, tmp_path: Path) -> None:
    """Exit code 2 is a wrong command line; 1, here, a GPU that is missing or a fault that was asked for."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copy(ROOT / "examples/h200-measured.json", tmp_path / "my-h200.json")  # as `warploom calibrate` writes it
    count, wrong = 0, []
    for document in DOCUMENTS:
        for words in re.findall(r"^    warploom ([a-z][^\n]*)", document.read_text(), re.MULTILINE):
            line = re.split(r"\s{2,}|\s#", words)[0]
            if "[" in line or line.startswith("bench"):  # a synopsis; minutes
                continue
            count += 1
            command = [installed_tree / "bin/warploom", *shlex.split(line)]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 1):
                wrong.append(f"{document.name}: {line}: {done.stderr}")
    assert count >= 20
    assert wrong == []


def test_the_cpp_of_the_readme_runs(installed_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "readme.cpp").write_text(readme_program("cpp"))
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{installed_tree}/include", f"-L{installed_tree}/lib"]
    run("c++", *flags, tmp_path / "readme.cpp", "-lwarploom", "-o", tmp_path / "readme")
    printed = run(tmp_path / "readme", env={**os.environ, "LD_LIBRARY_PATH": f"{installed_tree}/lib"})
    assert printed == "done\n"
