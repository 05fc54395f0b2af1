"""`python -m tests.soak`, or `make soak`: exit code 0 where nothing was lost, nothing came twice, every byte was right, and all stayed flat."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.soak.flat import Growth
from tests.soak.settings import Settings
from tests.soak.soak import Report, Soak

FULL_S, FULL_FUZZ = 1800.0, 100_000
KILL_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="8 producers, 8 consumers, 3 shards, and a kill -9 every 10 s.")
    parser.add_argument("--seconds", type=float, default=FULL_S, metavar="S", help=f"of load with kills (default {FULL_S:g})")
    parser.add_argument("--seed", type=int, metavar="N", help="of kills and nonsense (default: another one every time; it is printed)")
    parser.add_argument("--kill-s", type=float, default=KILL_S, metavar="S", help=f"mean time between two kills (default {KILL_S:g})")
    text = f"messages of nonsense to the servers (default {FULL_FUZZ} in {FULL_S:g} s, in proportion)"
    parser.add_argument("--fuzz", type=int, metavar="N", help=text)
    parser.add_argument("--folder", type=Path, metavar="DIR", help="a new one, for journal, logs, records, report.json (default: a temporary one)")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    fuzz = round(FULL_FUZZ * options.seconds / FULL_S) if options.fuzz is None else options.fuzz
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-")) / "run"
    folder.mkdir(parents=True)
    settings = Settings(folder=str(folder.resolve()), seconds=options.seconds, seed=seed, kill_s=options.kill_s, fuzz=fuzz)
    print(f"seed {seed}, {options.seconds:g} s, {fuzz} messages of nonsense, in {folder}", flush=True)
    report = Soak(settings).run()
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(_told(report), flush=True)
    return 0 if report.ok else 1


def _told(report: Report) -> str:
    lines = [
        f"{name}: {counts.trained} groups trained in {counts.steps} steps, {counts.put} put, dropped {counts.dropped}, "
        f"{counts.rows_read + counts.rows_graded} rows compared"
        for name, counts in report.topics.items()
    ]
    lines.append(f"{sum(report.kills.values())} kills: {report.kills}; {sum(report.made_again.values())} calls made again")
    lines.append(f"nonsense: {report.nonsense}, slowest answer after a burst {report.slowest_answer_s} s")
    lines += [_grown(part) for part in report.growth]
    lines += [f"WRONG: {problem}" for problem in report.problems]
    return "\n".join([*lines, "ok" if report.ok else "failed"])


def _grown(part: Growth) -> str:
    before, after = (nbytes / 1e6 for nbytes in part.pss_bytes)
    return f"{part.of}: {before:.1f} → {after:.1f} MB, {part.descriptors[0]:g} → {part.descriptors[1]:g} descriptors"


if __name__ == "__main__":
    sys.exit(main())
