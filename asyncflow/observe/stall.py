"""The report of a run that made no progress: written before the run is stopped for it, as JSON for programs and as text for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from asyncflow.observe.records import STALL
from asyncflow.workers.phase import read_phases
from transfer_queue.messages import StallReport
from transfer_queue.waits import render

STALL_TEXT = "stall.txt"


def stall_sink(run_dir: Path) -> Callable[[StallReport], None]:
    """What the controller calls with the report. It does not raise: a full disk must not hide why the run ends."""

    def save(report: StallReport) -> None:
        try:
            save_stall(run_dir, report)
        except OSError as error:
            print(f"{run_dir / STALL} cannot be written ({error}); it would have said:\n{render(report)}", file=sys.stderr, flush=True)

    return save


def save_stall(run_dir: Path, report: StallReport) -> None:
    """Each file appears whole or not at all."""
    _write(run_dir / STALL, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    _write(run_dir / STALL_TEXT, render(report).encode() + b"\n")


def load_stall(run_dir: Path) -> StallReport | None:
    """None: this run did not stall. Raises msgspec.DecodeError for a file of another release, OSError for one that cannot be read."""
    try:
        return msgspec.json.decode((run_dir / STALL).read_bytes(), type=StallReport)
    except FileNotFoundError:
        return None


def now_doing(run_dir: Path) -> Callable[[str], str]:
    """A worker's name → what its threads do at this moment. Workers of other hosts leave no marks here: "" for them."""

    def doing(worker: str) -> str:
        phases = read_phases(run_dir, worker)
        return ", ".join(phase if thread == "main" else f"{thread} {phase}" for thread, phase in phases.items() if phase != "idle")

    return doing


def _write(path: Path, data: bytes) -> None:
    draft = path.with_suffix(f"{path.suffix}.tmp")
    draft.write_bytes(data)
    os.replace(draft, path)
