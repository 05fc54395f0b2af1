"""`asyncflow size RUN|COSTS`: which stage is the bottleneck, what the present split gives, and which split would be best."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import msgspec

from asyncflow.config.errors import ConfigError
from asyncflow.sizing.advise import WINDOW, Advice, Option, advise
from asyncflow.sizing.costs import CostTable
from asyncflow.sizing.lengths import ResponseLengths, response_lengths
from asyncflow.sizing.load import load_costs
from asyncflow.sizing.measured import measured
from asyncflow.sizing.simulate import UNBOUNDED_BATCHES, Policy

DEFAULT_STALENESS = 2  # of a cost table, which names none: that of `asyncflow train`
SHOWN = 5  # alternatives
FAR = 0.2  # a prediction that is off by more is said to be
FAR_VERSIONS = 0.25


class Case(msgspec.Struct, frozen=True):
    """What is sized: a table with its lengths, and what a run of it did."""

    costs: CostTable
    lengths: ResponseLengths
    staleness: int | None
    policy: Policy
    tokens_per_s: float | None = None  # measured, with the run's own staleness and policy
    steps: int = 0
    staleness_mean: float | None = None  # measured over the same steps
    notes: list[str] = []


class SizeReport(msgspec.Struct, frozen=True):
    """What --json prints. Throughputs are trained response tokens a second and device. None means not measured."""

    table: str
    source: str
    advice: Advice
    gain: float
    pays: bool
    measured_tokens_per_s_device: float | None
    measured_staleness_mean: float | None
    model_error: float | None  # predicted over measured, less 1
    notes: list[str]


def size(subject: str, devices: int | None, staleness: str | None, policy: Literal["wait", "drop"] | None, as_json: bool) -> int:
    """Print the advice. Returns 0. Raises ConfigError for a subject that is neither run nor table, and for options that cannot be met."""
    case = _case(subject)
    bound = case.staleness if staleness is None else staleness_of(staleness)
    chosen = case.policy if policy is None else policy
    _check_devices(case.costs, devices)
    as_it_ran = bound == case.staleness and chosen == case.policy
    advice = advise(case.costs, bound, chosen, devices, case.lengths)
    report = _report(case, advice, case.tokens_per_s if as_it_ran else None)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        print("\n".join(lines(report, case)))
    return 0


def staleness_of(text: str) -> int | None:
    """`--staleness K`, or null for no bound but bytes. Raises ConfigError."""
    if text == "null":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--staleness {text}: it must be a whole number >= 0 or null; nothing was computed. Fix: --staleness 2")
    return int(text)


def _case(subject: str) -> Case:
    if Path(subject).is_dir():
        run = measured(Path(subject))
        return Case(run.costs, run.lengths, run.staleness, run.policy, run.tokens_per_s, run.steps, run.staleness_mean, run.notes)
    costs = load_costs(subject)
    return Case(costs, response_lengths(costs), DEFAULT_STALENESS, "wait")


def _check_devices(costs: CostTable, devices: int | None) -> None:
    others = (*costs.forwards, "trainer")
    least = costs.decode.devices + len(others)
    if devices is not None and devices < least:
        raise ConfigError(
            f"--devices {devices}: it must be at least {least}, {costs.decode.devices} for a replica and 1 each for {', '.join(others)}; "
            f"no split exists. Fix: --devices {least}"
        )


def _report(case: Case, advice: Advice, tokens_per_s: float | None) -> SizeReport:
    real = None if tokens_per_s is None else tokens_per_s / case.costs.split.devices
    error = None if real is None else advice.present.tokens_per_s_device / real - 1
    notes = list(case.notes)
    if advice.staleness is None:
        notes.append(
            f"without a bound, what is open is bounded by bytes, which a cost table does not know: {UNBOUNDED_BATCHES} batches are taken, and the "
            "staleness shown is that of the first steps and grows as the run goes on"
        )
    if error is not None and abs(error) > FAR:
        notes.append(
            "the prediction is far off: what the model leaves out (messages and copies of the queue, evaluations, workers that share cores) weighs "
            "as much as the work itself here; trust the order of the stages more than the numbers"
        )
    if real is not None and case.staleness_mean is not None and advice.present.staleness_mean - case.staleness_mean > FAR_VERSIONS:
        notes.append(
            f"predicted staleness is {advice.present.staleness_mean - case.staleness_mean:.2f} versions above the measured one: the model keeps the "
            "window full, for its replicas take a prompt the moment that one is admitted; take the prediction as the most to expect"
        )
    return SizeReport(
        table=case.costs.name,
        source=case.costs.source,
        advice=advice,
        gain=advice.gain,
        pays=advice.pays,
        measured_tokens_per_s_device=real,
        measured_staleness_mean=None if real is None else case.staleness_mean,
        model_error=error,
        notes=notes,
    )


def lines(report: SizeReport, case: Case) -> list[str]:
    """As a person reads it."""
    advice = report.advice
    bound = "unbounded (null)" if advice.staleness is None else f"at most {advice.staleness}"
    return [
        f"{report.table}: {report.source}",
        f"staleness {bound}, policy {advice.policy}, batches of {case.costs.batch_groups} x {case.costs.group_rows}; tokens are trained ones",
        "",
        *_stage_lines(advice, case.costs),
        "",
        *_split_lines(report, case),
        *(["", *(f"note: {note}" for note in report.notes)] if report.notes else []),
    ]


def _stage_lines(advice: Advice, costs: CostTable) -> list[str]:
    head = f"{'stage':<14} {'devices':>7} {'capacity tokens/s':>18} {'load':>6} {'busy':>6} {'spare':>6}   (split {costs.split})"
    rows = [
        f"{stage.stage:<14} {stage.devices:>7} {stage.capacity:>18,.0f} {stage.load:>6.0%} {stage.busy:>6.0%} {stage.spare:>6.0%}"
        for stage in advice.stages
    ]
    meaning = (
        "capacity: if the stage never waited, replicas as full as slots and permits allow; busy: a replica with one running row is busy too.\n"
        "Spare capacity of the rollout is not devices to take away: where the longest responses decide, fewer replicas make each of them slower"
    )
    return [head, *rows, meaning, f"bottleneck: {_bottleneck(advice)}"]


def _bottleneck(advice: Advice) -> str:
    if advice.bottleneck != WINDOW:
        return f"{advice.bottleneck}, which needs nearly all that it could serve"
    if advice.staleness is None:
        return "no stage: every one has room to spare, and what is open waits for its longest responses"
    return "the staleness bound: every stage has room to spare, and batches wait for their longest responses; a larger bound helps, not devices"


def _split_lines(report: SizeReport, case: Case) -> list[str]:
    advice = report.advice
    shown = [("present", advice.present), ("best", advice.best), *(("as good", option) for option in advice.alternatives[:SHOWN])]
    rows = [_option_line(name, option) for name, option in shown]
    if report.measured_tokens_per_s_device is not None and report.model_error is not None:
        measured_line = f"{'measured':<10} {case.costs.split!s:<14} {report.measured_tokens_per_s_device:>15.1f} {_versions(case.staleness_mean):>10}"
        rows.insert(1, f"{measured_line}   over {case.steps} steps; the prediction is off by {report.model_error:+.1%}")
    return [f"{'split':<25} {'tokens/s/device':>15} {'staleness':>10}", *rows, *_verdict(advice)]


def _versions(mean: float | None) -> str:
    return "" if mean is None else f"{mean:.2f}"


def _option_line(name: str, option: Option) -> str:
    dropped = f"   {option.dropped_share:.0%} of the groups dropped" if option.dropped_share else ""
    return f"{name:<10} {option.split!s:<14} {option.tokens_per_s_device:>15.1f} {option.staleness_mean:>10.2f}{dropped}"


def _verdict(advice: Advice) -> list[str]:
    """What it would gain, and whether to do it at all."""
    best, synchronous = advice.best, advice.synchronous
    ratio = best.tokens_per_s_device / synchronous
    against = f"the synchronous loop on all {advice.devices} devices gives {synchronous:.1f}; the best split {ratio:.2f} times that"
    if not advice.pays:
        return [against, "asynchrony does not pay here: the synchronous loop is faster than every split that was tried"]
    if advice.present.tokens_per_s_device <= synchronous:
        against += ", the present one does not reach it"
    return [f"the best split of {advice.devices} devices would give {advice.gain:.2f} times the throughput of the present one", against]
