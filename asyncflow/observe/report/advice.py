"""What the sizing of a run says: which stage is the bottleneck, how good the prediction is, and which split would be better."""

from __future__ import annotations

from pathlib import Path

from asyncflow.config.errors import ConfigError
from asyncflow.observe.report.data import Block
from asyncflow.sizing.advise import WINDOW, Advice, Option, advise
from asyncflow.sizing.measured import Measured, measured

ALTERNATIVES = 3


def advice(run_dir: Path) -> list[Block]:
    """Two tables, or one block that says why there is no advice."""
    try:
        run = measured(run_dir)
        found = advise(run.costs, run.staleness, run.policy, None, run.lengths)
    except ConfigError as error:
        return [Block("Sizing advice", f"None: {error}".encode("utf-8", "backslashreplace").decode())]
    except Exception as error:  # the same files, cut off anywhere, are read by another package: a page without advice is better than no page
        return [Block("Sizing advice", f"None, the run's files do not allow it: {type(error).__name__}: {error}")]
    return [stages(found, run), splits(found, run)]


def stages(found: Advice, run: Measured) -> Block:
    """Each stage's capacity and load in the present split."""
    rows: list[tuple[str, ...]] = [
        (stage.stage, str(stage.devices), f"{stage.capacity:,.0f}", f"{stage.load:.0%}", f"{stage.busy:.0%}", f"{stage.spare:.0%}")
        for stage in found.stages
    ]
    return Block("Sizing: the bottleneck", bottleneck(found), ("stage", "devices", "capacity, tokens/s", "load", "busy", "spare"), rows, run.notes)


def bottleneck(found: Advice) -> str:
    if found.bottleneck == WINDOW:
        return "The staleness bound: every stage has room to spare, and batches wait for their longest responses. A larger staleness helps most."
    return f"{found.bottleneck}: it needs nearly all that it could serve. Predicted for the present split, {found.present.split}."


def splits(found: Advice, run: Measured) -> Block:
    """Present, measured, best and as good ones. The order within a split: rollout, actor_forward, ref_forward, trainer."""
    rows = [_row("present, predicted", found.present)]
    if run.tokens_per_s is not None:
        real = run.tokens_per_s / run.costs.split.devices
        measured_age = "" if run.staleness_mean is None else f"{run.staleness_mean:.2f}"
        error = found.present.tokens_per_s_device / real - 1 if real > 0 else 0.0
        rows.append((f"present, measured (prediction off by {error:+.1%})", str(found.present.split), f"{real:,.1f}", measured_age))
    rows.append(_row("best", found.best))
    rows += [_row("as good", option) for option in found.alternatives[:ALTERNATIVES]]
    rows.append(("synchronous loop", f"all {found.devices}", f"{found.synchronous:,.1f}", "0.00"))
    pays = "" if found.pays else " Asynchrony does not pay here: the synchronous loop is faster than every split that was tried."
    says = f"The best split would give {found.gain:.2f} times the throughput a device of the present one.{pays}"
    return Block("Sizing: the split", says, ("", "rollout-actor-ref-trainer", "tokens/s a device", "staleness, mean"), rows)


def _row(name: str, option: Option) -> tuple[str, ...]:
    return name, str(option.split), f"{option.tokens_per_s_device:,.1f}", f"{option.staleness_mean:.2f}"
