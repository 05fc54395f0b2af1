"""`environment.json`: on what a run was made: program versions, processor, memory, system, revision, command line. No secrets, no host name."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

ENVIRONMENT = "environment.json"
PACKAGES = ("asyncflow", "torch", "transformers", "numpy", "pyzmq", "msgspec", "safetensors", "hydra-core", "vllm", "verl", "ray", "torch-npu")
GIT_S = 5.0
ROOT = Path(__file__).parents[2]  # of the source tree, where this is one


class Environment(msgspec.Struct, frozen=True):
    """None: could not be found out."""

    started: str  # UTC, ISO 8601
    command: list[str]  # the program by its name alone
    python: str
    packages: dict[str, str]  # installed ones of PACKAGES, by the metadata of the installation
    system: str
    processor: str | None
    cores: int | None  # of the machine
    cores_allowed: int | None  # that this process may use
    memory_bytes: int | None
    commit: str | None  # of the source tree, where it is a git work tree
    changed: bool | None  # whether tracked files differ from that commit

    def rows(self) -> list[tuple[str, str]]:
        """As a person reads it. What is not known has no row."""
        tree = f"{self.commit}{' with changes' if self.changed else ''}" if self.commit is not None else None
        cores = f"{self.cores_allowed} of {self.cores}" if self.cores_allowed != self.cores else str(self.cores)
        shown = {
            "started": self.started,
            "command": " ".join(self.command),
            "source": tree,
            "python": self.python,
            **self.packages,
            "system": self.system,
            "processor": self.processor,
            "cores": cores if self.cores is not None else None,
            "memory": f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes is not None else None,
        }
        return [(name, value) for name, value in shown.items() if value is not None]


def environment(argv: list[str]) -> Environment:
    """Of this process. `argv`: its command line; of the program only the name is kept, for its directory is the user's."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no") if commit is not None else None
    return Environment(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=[Path(argv[0]).name, *argv[1:]] if argv else [],
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := _version(name)) is not None},
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count(),
        cores_allowed=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=_number(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        commit=commit,
        changed=bool(changed) if changed is not None else None,
    )


def write_environment(run_dir: Path, argv: list[str] | None = None) -> None:
    """Into the run's directory, which exists."""
    record = environment(sys.argv if argv is None else argv)
    (run_dir / ENVIRONMENT).write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    """The model as Linux names it, else as Python knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(models, None) or platform.processor() or None


def _number(ask: Callable[[], int]) -> int | None:
    try:
        return ask()
    except (ValueError, OSError):
        return None  # a system that does not know the name


def _git(*arguments: str) -> str | None:
    """None outside a work tree of our own: the environment that this is installed into may lie in somebody else's."""
    if not (ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
