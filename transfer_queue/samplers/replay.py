"""Whether what a consumer declares as its replay can work: found when the controller starts, not by the first batch that misses something."""

from __future__ import annotations

from typing import get_args

from transfer_queue.messages import Consumer, Draw, Replay, TopicSpec

MOST_GROUPS = 1 << 24
MOST_SEED = 1 << 63  # numbers that every client can send
CONSEQUENCE = "nothing could be replayed"


class ReplayError(ValueError):
    """A replay that cannot work: key, value, rule, consequence, fix."""


def check_replay(consumer: Consumer, spec: TopicSpec, ranks: int) -> None:
    """Raises ReplayError. `ranks`: to which its sampler deals; 0: to none."""
    replay = consumer.replay
    if replay is None:
        return
    _check_numbers(replay)
    if not replay.on:
        return
    _check_consumer(consumer, replay, spec)
    if ranks and replay.groups % ranks:
        raise _wrong("groups", replay.groups, f"it cannot be dealt to {ranks} ranks in equal counts", "Choose a multiple of them")
    _check_bytes(replay, spec)


def _check_numbers(replay: Replay) -> None:
    for key in ("groups", "keep_groups"):
        if not 0 <= getattr(replay, key) <= MOST_GROUPS:
            raise _wrong(key, getattr(replay, key), f"it must lie in [0, {MOST_GROUPS}]", "Set 0 to replay nothing")
    if replay.on and replay.keep_groups < replay.groups:
        raise _wrong("keep_groups", replay.keep_groups, f"a batch could never have its {replay.groups} groups", "Keep more, or replay fewer")
    if replay.order not in get_args(Draw):
        raise _wrong("order", replay.order, f"known are {', '.join(get_args(Draw))}", "Choose one of them")
    if not 0 <= replay.seed < MOST_SEED:
        raise _wrong("seed", replay.seed, f"it must lie in [0, {MOST_SEED})", "Choose another")


def _check_consumer(consumer: Consumer, replay: Replay, spec: TopicSpec) -> None:
    groups = replay.groups
    if not consumer.terminal:
        raise _wrong("groups", groups, "only a terminal consumer trains anything that could be replayed", "Declare it of the trainer's stage")
    if consumer.needs_weights:
        rule = "with needs_weights a group waits for a taker's weights, and one that is drawn does not"
        raise _wrong("groups", groups, rule, "Leave one of them out")
    if spec.window.staleness == 0:
        rule = "at staleness 0 a group is too old as soon as it is trained"
        raise _wrong("groups", groups, rule, "Set a staleness of at least 1, or null")


def _check_bytes(replay: Replay, spec: TopicSpec) -> None:
    window, aside = spec.window, replay.set_aside(spec.window.group_bytes)
    if aside < (least := replay.groups * window.group_bytes):
        rule = f"{replay.groups} groups at their worst case (group_bytes={window.group_bytes}) take {least}: a batch might never have them"
        raise _wrong("keep_bytes", aside, rule, "Raise it, or replay fewer")
    if spec.admission_bytes < (least := window.batch * window.group_bytes):
        rule = f"of budget_bytes={window.budget_bytes} it leaves {spec.admission_bytes} to open groups, and a batch takes up to {least}"
        raise _wrong("keep_bytes", aside, rule, "Raise the window's budget_bytes, or keep less")


def _wrong(key: str, value: object, rule: str, fix: str) -> ReplayError:
    return ReplayError(f"replay.{key}={value!r}: {rule}; {CONSEQUENCE}. {fix}")
