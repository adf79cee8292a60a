"""`cmake --install`: a tree that can be moved, found by CMake and by pkg-config, from C and from C++."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, build_environment, run


def test_no_file_of_the_tree_names_where_it_was_built(installed_tree: Path) -> None:
    texts = [path for path in installed_tree.rglob("*") if path.suffix in {".cmake", ".pc", ".h"}]
    assert len(texts) >= 6
    assert [path for path in texts if str(ROOT) in path.read_text()] == []


def test_the_examples_build_with_find_package_and_run(installed_tree: Path, tmp_path: Path) -> None:
    run(
        *("cmake", "-S", ROOT / "examples", "-B", tmp_path, "-G", "Ninja"),
        *(f"-DCMAKE_PREFIX_PATH={installed_tree}", "-DCMAKE_BUILD_TYPE=Release"),
        env=build_environment(),
    )
    run("cmake", "--build", tmp_path)
    programs = [path for path in tmp_path.iterdir() if path.is_file() and os.access(path, os.X_OK)]
    assert len(programs) >= 2
    for program in programs:
        assert run(program, cwd=tmp_path).strip()


@pytest.mark.parametrize(("compiler", "flags", "suffix"), [("cc", ["-std=c11"], ".c"), ("c++", ["-std=c++20"], ".cpp")])
def test_a_header_compiles_and_links_through_pkg_config(
    installed_tree: Path, tmp_path: Path, compiler: str, flags: list[str], suffix: str
) -> None:
    source = tmp_path / f"version{suffix}"
    source.write_text(
        "#include <stdio.h>\n"
        + ("#include <warploom/attention.h>\n" if suffix == ".cpp" else "#include <warploom/warploom.h>\n")
        + 'int main(void) { return printf("%s\\n", warploom_version()) < 0; }\n'
    )
    (folder,) = installed_tree.glob("lib/**/pkgconfig")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    found = run("pkg-config", "--cflags", "--libs", "warploom", env=environment).split()
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    run(compiler, *flags, *strict, source, "-o", tmp_path / "version", *found)
    version = run("pkg-config", "--modversion", "warploom", env=environment)
    library = next(word.removeprefix("-L") for word in found if word.startswith("-L"))
    printed = run(tmp_path / "version", env={**os.environ, "LD_LIBRARY_PATH": library})
    assert printed == version


def test_another_minor_version_is_refused(installed_tree: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(consumer LANGUAGES C)\nfind_package(warploom 0.99 REQUIRED)\n"
    )
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed_tree}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "compatible with requested version" in done.stderr


def test_missing_headers_are_named_together_with_their_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", "-DWARPLOOM_BUILD_TESTS=ON"),
            "-DCMAKE_IGNORE_PATH=/include;/usr/include;/usr/local/include",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "hwy/highway.h, nlohmann/json.hpp, CLI/CLI.hpp, gtest/gtest.h" in message
    assert "sudo apt-get install libhwy-dev nlohmann-json3-dev libcli11-dev libgtest-dev" in message
