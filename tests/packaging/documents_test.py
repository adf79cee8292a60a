"""The documents: their links lead somewhere, and the README's programs run as printed."""

from __future__ import annotations

import os
import re
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


def readme_program(language: str) -> str:
    (program,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return str(program)


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "readme.py").write_text(readme_program("python"))
    assert run(sys.executable, tmp_path / "readme.py", cwd=tmp_path).startswith("(353, 4, 64) (353, 4, 64)")


def test_the_cpp_of_the_readme_runs(installed_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "readme.cpp").write_text(readme_program("cpp"))
    flags = ["-std=c++20", "-Wall", "-Wextra", f"-I{installed_tree}/include", f"-L{installed_tree}/lib"]
    run("c++", *flags, tmp_path / "readme.cpp", "-lwarploom", "-o", tmp_path / "readme")
    printed = run(tmp_path / "readme", env={**os.environ, "LD_LIBRARY_PATH": f"{installed_tree}/lib"})
    assert printed == "done\n"
