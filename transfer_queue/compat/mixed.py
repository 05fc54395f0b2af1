"""Whose folder is this? Other projects call their modules as ours are called: the package TransferQueue writes `transfer_queue`, Moonshot's library
writes `checkpoint_engine`. Installed side by side, the later one has written over the earlier, or the first on the path hides the other: half of each
runs, and what fails is something else, much later. Only the standard library is used, so that any process can ask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

OURS = "asyncflow"
_SIGNS = {"transfer_queue": "compat/mixed.py", "checkpoint_engine": "weights_id.py"}  # a file that only our folder has


@dataclass(frozen=True)
class Writer:
    """A distribution that has installed files into a package's folder."""

    name: str
    version: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def check_folder(package: str) -> Path:
    """The folder that `import package` finds. Raises RuntimeError where it is not AsyncFlow's, or not AsyncFlow's alone."""
    folder = _found(package)
    others = [writer for writer in writers(package) if writer.folder == folder]
    if not (folder / _SIGNS[package]).is_file():
        whose = f"which {' and '.join(map(str, others))} wrote" if others else "which is not AsyncFlow's"
        raise RuntimeError(f"`import {package}` finds {folder}, {whose}: none of AsyncFlow's {package} runs. {_mend(others)}")
    if others:
        whose = " and of ".join(["AsyncFlow", *map(str, others)])
        raise RuntimeError(f"{folder} holds files of {whose}: the later one wrote over the earlier, so half of each runs. {_mend(others)}")
    return folder


def writers(package: str) -> list[Writer]:
    """Every distribution but ours that says it wrote files into a folder of this name, wherever it lies. A stub, a name without modules, is none."""
    listed = re.compile(rf"^{package}/", re.MULTILINE)
    found = []
    for distribution in distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower() != OURS and listed.search(distribution.read_text("RECORD") or ""):
            found.append(Writer(name, distribution.version, Path(str(distribution.locate_file(package))).resolve()))
    return sorted(set(found), key=str)


def _found(package: str) -> Path:
    """Where its __init__.py lies, whether it was imported already or not."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a folder without __init__.py: what a removed package left
        gone = f"`import {package}` finds no {package}/__init__.py"
        raise RuntimeError(f"{gone}: another package that wrote there was removed, and took it away. {_mend([])}")
    return Path(spec.origin).resolve().parent


def _mend(others: list[Writer]) -> str:
    away = "".join(f"pip uninstall -y {writer.name}; " for writer in others)
    again = f"{away}pip install --force-reinstall --no-deps {OURS}"
    stub = "; if something asks for that name, install a stub of it (constraints/stub_wheel.py)" if others else ""
    return f"To mend it: {again}{stub}"
