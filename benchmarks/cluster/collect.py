"""One table a run, whoever made it: AsyncFlow's records or the lines of verl's `file` tracker. What a run did not measure is None, never 0."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import msgspec

from asyncflow.config.errors import ConfigError
from asyncflow.observe.report.build import report_of
from asyncflow.observe.report.data import RunReport

FROM_FIGURES = {
    "steps": "versions", "seconds": "seconds", "tokens": "tokens", "tokens_per_s": "rate", "tokens_per_s_device": "rate_device",
    "staleness_mean": "staleness_mean", "staleness_max": "staleness_max", "reward_last": "reward_last",
}  # fmt: skip
UNITS = {
    "steps": "steps", "seconds": "s", "tokens": "response tokens", "tokens_per_s": "response tokens/s",
    "tokens_per_s_device": "response tokens/s/device",
    "staleness_mean": "versions", "staleness_max": "versions", "reward_last": "reward",
}  # fmt: skip
TAIL = 0.1  # the end of a run, as in `asyncflow report`


class Table(msgspec.Struct, kw_only=True):
    """A run. `values` by the names of UNITS; `phases` of a weight sync in mean seconds; `idle` as share of the time; `reward` (step, mean reward)."""

    name: str
    source: str  # "asyncflow" | "verl"
    values: dict[str, float | None]
    phases: dict[str, float | None]
    idle: dict[str, float | None]
    reward: list[tuple[float, float]]
    notes: list[str]


class Line(msgspec.Struct):
    """One line of verl's `file` tracker."""

    step: int
    data: dict[str, object]


def collect(path: Path) -> Table:
    """A directory is AsyncFlow's run, a file verl's. Raises ConfigError for what is neither."""
    if path.is_dir():
        return of_asyncflow(report_of(path))
    if path.is_file():
        return of_verl(path)
    raise ConfigError(f"RUN = {path}: there is no such directory or file. Name an AsyncFlow run's directory or the .jsonl of verl's file tracker")


def of_asyncflow(report: RunReport) -> Table:
    found = {figure.key: figure.value for figure in report.figures}
    charts = {chart.key: chart for chart in report.charts}
    phases: dict[str, float | None] = {}
    for key in ("sync", "loaded"):
        for curve in charts[key].curves if key in charts else ():
            seconds = [value for value in curve.y if value is not None]
            phases[curve.name] = sum(seconds) / len(seconds) / 1e3 if seconds else None
    reward = []
    for curve in charts["reward"].curves if "reward" in charts else ():
        versions = report.grids[curve.grid].axes["version"]
        reward = [(step, value) for step, value in zip(versions, curve.y, strict=True) if value is not None]
    values = {name: found.get(key) for name, key in FROM_FIGURES.items()}
    if not values["steps"]:
        values = {name: value if name in ("steps", "seconds") else None for name, value in values.items()}
    notes = [f"{report.verdict.word}: {report.verdict.sentence}", *report.notes]
    return Table(name=report.name, source="asyncflow", values=values, phases=phases, idle={share.role: share.wait for share in report.shares},
                 reward=reward, notes=notes)  # fmt: skip


def of_verl(path: Path) -> Table:
    """Tokens are those of responses, as AsyncFlow counts them: verl's total holds the prompts too, and is divided by its own mean lengths."""
    lines, notes = _lines(path)
    rewards = [(float(line.step), value) for line in lines if (value := number(line, "critic/score/mean")) is not None]
    trained = [line for line in lines if number(line, "perf/time_per_step") is not None]
    seconds = sum(number(line, "perf/time_per_step") or 0.0 for line in trained) if trained else None
    counted = [_responses(line) for line in trained]
    known = [value for value in counted if value is not None]
    tokens = sum(known) if known and len(known) == len(counted) else None
    if trained and tokens is None:
        notes.append("tokens: missing in at least one step (perf/total_num_tokens, response_length/mean, prompt_length/mean)")
    rate = tokens / seconds if tokens is not None and seconds else None
    devices = _devices(trained)
    tail = [value for _, value in rewards[-max(1, int(len(rewards) * TAIL)) :]]
    values = {
        "steps": float(len(trained)), "seconds": seconds, "tokens": tokens, "tokens_per_s": rate,
        "tokens_per_s_device": rate / devices if rate is not None and devices else None, "staleness_mean": None, "staleness_max": None,
        "reward_last": sum(tail) / len(tail) if tail else None,
    }  # fmt: skip
    notes.append("verl's seconds are the sum of its steps, without the start; its file has no staleness of trained tokens")
    updates = [value for line in trained if (value := number(line, "timing_s/update_weights")) is not None]
    phases: dict[str, float | None] = {"update_weights": sum(updates) / len(updates)} if updates else {}
    return Table(name=path.stem, source="verl", values=values, phases=phases, idle={}, reward=rewards, notes=notes)


def number(line: Line, key: str) -> float | None:
    value = line.data.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _lines(path: Path) -> tuple[list[Line], list[str]]:
    """The last line of a step counts: a resumed run may repeat steps."""
    lines: dict[int, Line] = {}
    unread = 0
    with path.open("rb") as file:
        for raw in file:
            try:
                line = msgspec.json.decode(raw, type=Line)
            except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
                unread += 1
                continue
            if line.step in lines:
                line.data = {**lines[line.step].data, **line.data}
            lines[line.step] = line
    return [lines[step] for step in sorted(lines)], [f"{path.name}: {unread} lines could not be read (cut off?)"] if unread else []


def _responses(line: Line) -> float | None:
    total, response, prompt = (number(line, key) for key in ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean"))
    if total is None or response is None or prompt is None or response + prompt <= 0:
        return None
    return total * response / (response + prompt)


def _devices(lines: list[Line]) -> int | None:
    """verl's throughput is a device's: total ÷ time ÷ throughput is how many it counted."""
    for line in lines:
        total, seconds, rate = (number(line, key) for key in ("perf/total_num_tokens", "perf/time_per_step", "perf/throughput"))
        if total and seconds and rate:
            return round(total / seconds / rate)
    return None


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m benchmarks.cluster.collect RUN", file=sys.stderr)
        return 2
    try:
        print(msgspec.json.format(msgspec.json.encode(collect(Path(sys.argv[1])))).decode())
    except ConfigError as error:
        print(f"collect: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
