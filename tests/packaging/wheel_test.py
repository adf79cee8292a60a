"""The wheel: one for every Python 3, complete, and at home on a machine that has glibc and nothing else of ours."""

from __future__ import annotations

import json
import platform
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, run

# glibc's own libraries and the loader.
GLIBC = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux.*\.so\.\d+")

# No PATH, no PYTHONPATH, no library path: nothing of the developer's machine can help.
BARE = {"HOME": "/nonexistent", "PATH": "/nonexistent"}


def project_version() -> str:
    found = re.search(r"project\(warploom VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found.group(1)


def needed_libraries(binary: Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", binary))


def site_packages(environment: Path) -> Path:
    (folder,) = environment.glob("lib/python3*/site-packages")
    return folder


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    assert wheel.name == f"warploom-{project_version()}-py3-none-linux_{platform.machine()}.whl"


def test_the_wheel_holds_the_package_the_library_and_the_command_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = {
        f"warploom/{path.relative_to(ROOT / 'python/warploom')}" for path in ROOT.glob("python/warploom/**/*.py")
    }
    assert len(sources) > 1
    expected = sources | {
        "warploom/py.typed",
        "warploom/lib/libwarploom.so",
        f"warploom-{project_version()}.data/scripts/warploom",
    }
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("LICENSE") for name in names)


def test_it_asks_for_no_other_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"warploom-{project_version()}.dist-info/METADATA").decode()
    required = re.findall(r"^Requires-Dist: .*$", metadata, re.MULTILINE)
    assert [line for line in required if "extra ==" not in line] == []


@pytest.mark.parametrize("binary", ["warploom/lib/libwarploom.so", "../../../bin/warploom"])
def test_a_binary_needs_glibc_alone(empty_environment: Path, binary: str) -> None:
    libraries = needed_libraries(site_packages(empty_environment) / binary)
    assert libraries
    assert [name for name in libraries if not GLIBC.fullmatch(name)] == []


def test_the_library_exports_the_c_abi_alone(empty_environment: Path) -> None:
    library = site_packages(empty_environment) / "warploom/lib/libwarploom.so"
    symbols = {line.split()[-1] for line in run("nm", "--dynamic", "--defined-only", library).splitlines()}
    headers = "".join(path.read_text() for path in ROOT.glob("include/warploom/*.h"))
    assert symbols == set(re.findall(r"^WARPLOOM_API .*?(warploom_\w+)\(", headers, re.MULTILINE))


def test_it_imports_where_neither_torch_nor_numpy_is(empty_environment: Path) -> None:
    program = (
        "import sys, warploom\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert warploom.devices()[0]['kind'] == 'cpu', warploom.devices()\n"
        "print(warploom.__version__)"
    )
    printed = run(empty_environment / "bin/python", "-I", "-c", program, cwd=empty_environment, env=BARE)
    assert printed.strip() == project_version()


def test_the_command_runs_without_the_environment_being_active(empty_environment: Path) -> None:
    command = empty_environment / "bin/warploom"
    assert project_version() in run(command, "--version", cwd=empty_environment, env=BARE)
    assert project_version() in run(command, "info", cwd=empty_environment, env=BARE)


@pytest.mark.parametrize("packages", ["site-packages", "dist-packages"])  # dist-packages: Debian's own Python
def test_the_command_looks_for_nvrtc_in_its_own_environment(
    empty_environment: Path, tmp_path: Path, packages: str
) -> None:
    command = tmp_path / "env/bin/warploom"
    command.parent.mkdir(parents=True)
    shutil.copy(empty_environment / "bin/warploom", command)
    nvrtc = tmp_path / "env/lib/python3.12" / packages / "nvidia/cu13/lib/libnvrtc.so.13"
    nvrtc.parent.mkdir(parents=True)
    nvrtc.write_text("found, and refused because it is no library")
    link = tmp_path / "warploom"  # as pipx and uv put commands on the PATH
    link.symlink_to(command)
    for started in (command, link):
        found = json.loads(run(started, "info", "--json", cwd=tmp_path, env=BARE))["nvrtc"]
        assert (str(nvrtc), "Python environment") in [(one["path"], one["origin"]) for one in found]
