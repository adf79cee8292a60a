"""What the packaging tests look at, built once: the wheel, an empty environment that has it, and an installed tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its standard output; a failure shows everything it printed."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_environment() -> dict[str, str]:
    """The objects of one optimised build serve them all when ccache is there; it tells compilers apart by name."""
    environment = {**os.environ, "CC": "cc", "CXX": "c++"}
    if shutil.which("ccache"):
        environment |= {
            "CMAKE_C_COMPILER_LAUNCHER": "ccache",
            "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
            "CCACHE_BASEDIR": str(ROOT),
            "CCACHE_NOHASHDIR": "1",
        }
    return environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--config-settings", "cmake.define.WARPLOOM_WERROR=ON", "--wheel-dir", folder, ROOT),
        env=build_environment(),
    )
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="session")
def empty_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds the wheel and nothing else, pip neither."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-index", "--no-deps", wheel)
    return folder


@pytest.fixture(scope="session")
def installed_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` leaves, moved to another place than it was installed to."""
    run("tools/build", "dev")
    folder = tmp_path_factory.mktemp("installed")
    run("cmake", "--install", "build/dev", "--prefix", folder / "first")
    return (folder / "first").rename(folder / "moved")
