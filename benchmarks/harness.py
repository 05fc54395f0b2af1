"""What every benchmark of this project has in common: its arguments, its rows, and what machine it ran on.

A row compares a measured value with a reference that was measured in the same run. `met` is null where nothing is claimed, and `note` says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

import msgspec


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float | None  # None: not measured
    unit: str
    reference: float | None = None  # of the same run, in the same unit
    ratio: float | None = None  # value ÷ reference
    goal: float | None = None  # for the ratio where there is one, else for the value
    met: bool | None = None  # None: there is no goal, or nothing is claimed
    note: str = ""


class Results(msgspec.Struct):
    """What `--json` writes."""

    rows: list[Row]
    machine: dict[str, str | int | float]

    def add(self, *rows: Row) -> None:
        """Printed at once: a benchmark takes minutes."""
        self.rows += rows
        for row in rows:
            print(as_text(row), flush=True)

    def write(self, path: Path | None) -> None:
        if path is not None:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.met is False]


def compared(
    name: str, value: float, unit: str, reference: float, *, at_least: float | None = None, claimed: bool = True, note: str = ""
) -> Row:
    """A row whose goal is a least ratio of value to reference. `claimed` False: the numbers stand, the goal is not judged."""
    ratio = value / reference
    met = ratio >= at_least if at_least is not None and claimed else None
    return Row(name=name, value=value, unit=unit, reference=reference, ratio=ratio, goal=at_least, met=met, note=note)


def as_text(row: Row) -> str:
    """One line for people."""
    parts = [row.name, "not measured" if row.value is None else f"{row.value:.4g}", row.unit]
    if row.reference is not None and row.ratio is not None:
        parts.append(f"(reference {row.reference:.4g}, ratio {row.ratio:.3f})")
    if row.goal is not None:
        parts.append(f"goal {row.goal:g}: {'not claimed' if row.met is None else 'met' if row.met else 'MISSED'}")
    return "  ".join([*parts, *([f"[{row.note}]"] if row.note else [])])


def machine() -> dict[str, str | int | float]:
    """What the numbers depend on; nothing that names the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--quick", action="store_true", help="everything in small, in seconds; its numbers mean nothing")
    return parser


def finish(results: Results, path: Path | None) -> None:
    """Write, and exit with 1 if a claimed goal was missed."""
    results.write(path)
    for row in results.failed:
        print(f"missed: {as_text(row)}", file=sys.stderr)
    sys.exit(1 if results.failed else 0)
