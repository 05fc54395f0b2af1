"""Runs side by side: markdown for people, and rows in the common form of the benchmarks. The last run named is the reference."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncflow.config.errors import ConfigError
from benchmarks.cluster.collect import UNITS, Table, collect
from benchmarks.harness import Results, Row, machine

MISSING = "missing"
POINTS = 10  # rewards shown a run


def markdown(tables: Sequence[Table]) -> str:
    """One column a run."""
    lines = [_cells(["", *(f"{table.name} ({table.source})" for table in tables)]), _cells(["---"] * (len(tables) + 1))]
    lines += [_cells([f"{name}, {unit}", *(_shown(table.values[name]) for table in tables)]) for name, unit in UNITS.items()]
    for title, kind in (("weight sync: {}, s", "phases"), ("idle: {}, share", "idle")):
        names = dict.fromkeys(name for table in tables for name in getattr(table, kind))
        lines += [_cells([title.format(name), *(_shown(getattr(table, kind).get(name)) for table in tables)]) for name in names or ["any"]]
    for table in tables:
        kept = table.reward[:: max(1, -(-len(table.reward) // POINTS))]
        lines.append(f"\nreward of {table.name} by step: " + (", ".join(f"{step:g}: {value:.4g}" for step, value in kept) or MISSING))
        lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines) + "\n"


def rows(tables: Sequence[Table]) -> list[Row]:
    """Every figure of every run; nothing is claimed here."""
    last = tables[-1]
    return [
        _row(f"{table.name}: {name}", table.values[name], unit, last.values[name] if table is not last else None)
        for table in tables
        for name, unit in UNITS.items()
    ]


def _row(name: str, value: float | None, unit: str, reference: float | None) -> Row:
    ratio = value / reference if value is not None and reference else None
    return Row(name=name, value=value, unit=unit, reference=reference, ratio=ratio, note="" if value is not None else MISSING)


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _shown(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs side by side; the last is the reference.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory of an AsyncFlow run, or .jsonl of verl's file tracker")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    try:
        tables = [collect(run) for run in given.runs]
    except ConfigError as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(markdown(tables))
    Results(rows(tables), machine()).write(given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
