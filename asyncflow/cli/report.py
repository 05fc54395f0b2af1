"""`asyncflow report`: one self-contained page of one run, or of two side by side, and on demand a trace for Perfetto."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from asyncflow.config.errors import ConfigError
from asyncflow.observe.report.build import report_of
from asyncflow.observe.report.page import render
from asyncflow.observe.report.trace import write_trace

PAGE = "report.html"  # in the run's directory, unless --out says otherwise


def report(runs: list[str], out: str | None, trace: str | None) -> int:
    """Print what was written, one path a line. Returns 0. Raises ConfigError for a path that holds no run and one that cannot be written."""
    directories = [Path(run) for run in runs]
    if len(directories) > 2:
        raise ConfigError(f"RUN = {', '.join(runs)}: one run, or two to be compared; nothing was written. Leave {len(runs) - 2} out")
    reports = [report_of(directory) for directory in directories]
    page = Path(out) if out is not None else directories[0] / (PAGE if len(runs) == 1 else f"report-with-{directories[1].resolve().name}.html")
    _write("--out", page, lambda draft: draft.write_text(render(reports), encoding="utf-8"))
    print(page)
    if trace is not None:
        _write("--trace", Path(trace), lambda draft: write_trace(draft, directories))
        print(trace)
    return 0


def _write(option: str, path: Path, write: Callable[[Path], object]) -> None:
    """Whole or not at all: a page that somebody has open is replaced only by a complete one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(draft)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigError(f"{option} {path}: it cannot be written ({error.strerror or error}). Name a file in a directory that exists") from None
