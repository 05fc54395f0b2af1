"""Run directories for the report's tests: a real controller and recorder write the logs, and a timeline of the recorded shape is laid beside them."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path

import msgspec

from asyncflow.observe.environment import write_environment
from asyncflow.observe.records import EVENTS, METRICS, SUMMARY, TIMELINE, Span, TimelineRecord
from tests.observe.small_run import record_run

FILES = (EVENTS, METRICS, SUMMARY, TIMELINE, "config.json", "environment.json")
WORKERS = {"rollout-0": "rollout", "rollout-1": "rollout", "trainer-0": "trainer", "publisher-0": "publisher"}
WHATS = ("compute", "put", "commit", "load", "publish")


def unfinish(run_dir: Path) -> None:
    """As a run leaves its files when everybody is killed before its end: no summary, and no word of a stop."""
    (run_dir / SUMMARY).unlink()
    lines = (run_dir / EVENTS).read_bytes().splitlines(keepends=True)
    (run_dir / EVENTS).write_bytes(b"".join(line for line in lines if b'"kind":"run"' not in line))


def timeline(seed: int, records: int = 4, spans: int = 20, record_s: float = 1.0) -> list[TimelineRecord]:
    """Records that tile the time of every worker; spans of one thread do not overlap; between them the worker waits."""
    dice = random.Random(seed)
    found = []
    for turn in range(records):
        for worker, role in WORKERS.items():
            begin = turn * record_s
            edges = sorted(dice.uniform(begin, begin + record_s) for _ in range(2 * spans))
            made = [Span("main", "busy", dice.choice(WHATS), start, end) for start, end in zip(edges[::2], edges[1::2], strict=True)]
            if role == "rollout":
                made += [Span("main", "paused", "load", begin, edges[0]), Span("receiver", "busy", "receive", begin, begin + record_s / 50)]
            lengths = [dice.randint(3, 40) for _ in range(5)] if role == "rollout" else []
            found.append(TimelineRecord(f"{worker}#0", role, begin, begin + record_s, made, lengths))
    return found


def write_lines(path: Path, records: list[TimelineRecord]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def whole_run(folder: Path, seed: int = 0, steps: int = 6) -> Path:
    """A completed run with every file that a run has. Made once for every seed and length; each test has its own copy."""
    run_dir = folder / "run"
    run_dir.mkdir()
    for name, data in _files(seed, steps).items():
        (run_dir / name).write_bytes(data)
    return run_dir


@functools.cache
def _files(seed: int, steps: int) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = _made(Path(folder), seed, steps)
        return {name: (run_dir / name).read_bytes() for name in FILES}


def _made(folder: Path, seed: int, steps: int) -> Path:
    info = {"loss": 0.25, "grad_norm": 1.5, "kl": 0.01, "copy_seconds": 0.003, "staleness_mean": 0.5, "staleness_p95": 1.0}
    run_dir = record_run(folder, steps, 3, seed, info=info)
    write_lines(run_dir / TIMELINE, timeline(seed))
    write_environment(run_dir, ["/somewhere/bin/asyncflow", "train", "recipe"])
    return run_dir
