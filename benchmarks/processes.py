"""What the processes of a run and the machine under them did, read off /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

TICKS_S = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """Cumulative CPU seconds at one moment: of the whole machine, and of some processes by name."""

    at_s: float
    machine_s: float  # all cores, idle time included
    idle_s: float
    processes_s: dict[str, float]


def usage(pids: dict[str, int]) -> Usage:
    """Now, of the machine and of `pids` (name → pid); processes that are gone are left out."""
    fields = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))  # user … steal; guest time is part of user time
    spent = {name: seconds for name, pid in pids.items() if (seconds := _cpu_s(pid)) is not None}
    return Usage(time.monotonic(), sum(fields) / TICKS_S, (fields[3] + fields[4]) / TICKS_S, spent)


def idle_share(before: Usage, after: Usage) -> float:
    """Of the machine's CPU time between the two, waiting for disks included."""
    return (after.idle_s - before.idle_s) / (after.machine_s - before.machine_s)


def own_share(before: Usage, after: Usage) -> float:
    """Of the machine's CPU time, what the named processes took."""
    spent = sum(seconds - before.processes_s.get(name, 0.0) for name, seconds in after.processes_s.items())
    return spent / (after.machine_s - before.machine_s)


def memory_mib(pids: Iterable[int]) -> float:
    """Proportional set size of all together: pages that several share count once."""
    return sum(_pss_kib(pid) for pid in pids) / 1024


def with_library(pids: dict[str, int], word: str) -> list[str]:
    """Names of those that have a file mapped whose name holds `word`."""
    return [name for name, pid in pids.items() if word in _read(pid, "maps")]


def _cpu_s(pid: int) -> float | None:
    stat = _read(pid, "stat").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / TICKS_S if stat else None


def _pss_kib(pid: int) -> int:
    lines = _read(pid, "smaps_rollup").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _read(pid: int, name: str) -> str:
    """Empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
