"""Small Ray clusters on this machine, for tests: every node is a raylet of its own, its CPUs and devices are numbers only."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncflow.launch.ray.cluster import QUIET, STORE_BYTES

SOON_S = 20.0
COMMON: dict[str, Any] = {"object_store_memory": STORE_BYTES, "include_dashboard": False}


@contextmanager
def nodes(monkeypatch: pytest.MonkeyPatch, *each: dict[str, Any]) -> Iterator[Any]:
    """A cluster with these nodes, the head first; yields Ray's own object, whose `address` is to be joined."""
    from ray.cluster_utils import Cluster

    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    folder = tempfile.mkdtemp(prefix="af-", dir="/tmp")
    (Path(folder) / "ray").mkdir()
    monkeypatch.setenv("RAY_TMPDIR", folder)
    cluster = Cluster(initialize_head=True, head_node_args=COMMON | each[0])
    try:
        for node in each[1:]:
            cluster.add_node(**COMMON, **node)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def workers_at(run_dir: Path) -> dict[str, list[psutil.Process]]:
    """Worker programs of a run with this directory that are there now, by name: whoever's children they are."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if "--attached" in words and any(file.path.startswith(str(run_dir)) for file in process.open_files()):
                found.setdefault(words[words.index("--name") + 1], []).append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def environment_of(process: psutil.Process, name: str) -> str | None:
    return process.environ().get(name)


def node_of(process: psutil.Process) -> int:
    """Pid of the raylet that the worker's agent belongs to."""
    return next(parent.pid for parent in process.parents() if parent.name() == "raylet")


def gone(pids: list[int], within_s: float = SOON_S) -> list[int]:
    """Those of them that are still there after the time."""
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if _runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def below(pid: int = os.getpid()) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]
