"""At which versions the run evaluates and exports."""

from __future__ import annotations

import msgspec

from asyncflow.config.root import RunConfig
from transfer_queue.controller.config import CoreConfig

MOST_SHOWN = 12  # versions in the list


class Due(msgspec.Struct, frozen=True):
    """Versions at which something is due. Where versions follow one another faster than it is done, the next one that comes takes its place."""

    count: int
    versions: list[int]  # the first of them and the last
    left_out: int  # of the list


class Schedule(msgspec.Struct, frozen=True):
    evaluation: Due
    evaluation_items: int  # in each; the denominator
    evaluators: int  # replicas of which one evaluates
    duty_s: float  # so long an evaluation counts as progress, and no longer
    export: Due


def schedule(config: RunConfig, core: CoreConfig) -> Schedule:
    duty = next(iter(core.duties), None)
    steps, every = config.total_steps, config.weights.export_every
    return Schedule(
        evaluation=due(None if duty is None else duty.every, steps, last=duty is not None),
        evaluation_items=config.evaluation.items if duty is not None else 0,
        evaluators=config.resources["rollout"].workers,
        duty_s=core.duty_s,
        export=due(every, steps, last=True),
    )


def due(every: int | None, steps: int, last: bool) -> Due:
    """Multiples of `every` from 0 to `steps`, and with `last` the final version: what `Duties` and the publisher find due one version at a time."""
    versions = range(0, steps + 1, every) if every is not None else range(0)
    ends = [steps] if last and steps not in versions else []
    count = len(versions) + len(ends)
    shown = [*versions[:MOST_SHOWN], *([versions[-1]] if len(versions) > MOST_SHOWN and not ends else []), *ends]
    return Due(count, shown, count - len(shown))
