"""``python -m warploom``: the installed ``warploom`` command with the same arguments."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

_ELF = b"\x7fELF"


def _find() -> Path:
    """The command beside the package (a wheel), in the environment's scripts folder, or in a development build tree."""
    folders = [Path(__file__).resolve().parent / "bin", Path(sysconfig.get_path("scripts"))]
    library = os.environ.get("WARPLOOM_LIBRARY")
    if library:
        folders.append(Path(library).resolve().parent / "bin")
    for folder in folders:
        candidate = folder / "warploom"
        # A script of that name would be Python's own wrapper around this file.
        if candidate.is_file() and candidate.open("rb").read(4) == _ELF:
            return candidate
    tried = ", ".join(str(folder) for folder in folders)
    sys.exit(f"warploom: the command is in none of {tried}; build it with make build")


def main() -> None:
    command = _find()
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
