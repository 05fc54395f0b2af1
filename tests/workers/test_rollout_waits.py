"""The rollout worker sleeps while an engine that computes elsewhere has nothing new, and a message still wakes it."""

from __future__ import annotations

import time
from pathlib import Path

from asyncflow.engines.emulated.clock import ModelClock
from asyncflow.engines.emulated.rollout import EmulatedRolloutEngine
from asyncflow.workers.rollout import RolloutWorker
from tests.engines.emulated.emulation import emulation, weights
from tests.workers.test_rollout_worker import SHAPE
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, Desk, desk

STEPS_S = 10 * (1.0 + 0.5 * 4)  # modelled: ten decode steps of four rows
SCALE = 50.0


class Unanswered:
    """A renewal that a slow controller has not answered yet."""

    def done(self) -> bool:
        return False


def decoding(found: Desk) -> RolloutWorker:
    """A worker that has just been given the one prompt there is."""
    found.put_prompts(1)
    engine = EmulatedRolloutEngine(emulation(), ModelClock(SCALE))
    engine.start()
    engine.load_weights(weights(0), [])
    worker = RolloutWorker(found.context("rollout-0"), engine, None)
    worker._follower.loaded = engine.loaded  # there is no publisher here
    while not len(worker._book):
        worker._turn()
    return worker


def test_the_loop_turns_for_events_only_and_rows_come_when_they_are_due(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.progress_s=0.5") as found:
        worker = decoding(found)
        begin_s, turns = time.monotonic(), 0
        while len(worker._book):
            worker._turn()
            turns += 1
        took_s = time.monotonic() - begin_s
        worker._writer.drain()
        stored = found.queue.status().topics[0].stored_rows
        busy_s = worker._context.clock.totals()["busy"]
        worker._writer.close()
    assert stored == 4
    assert took_s >= 0.8 * STEPS_S / SCALE
    assert turns < 20
    assert busy_s >= 0.8 * took_s


def test_a_renewal_that_is_not_answered_in_time_does_not_make_the_loop_spin(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.progress_s=0.001") as found:
        worker = decoding(found)
        worker._progress = Unanswered()  # type: ignore[assignment]
        turns = 0
        while len(worker._book):
            worker._turn()
            turns += 1
        worker._writer.drain()
        worker._writer.close()
    assert turns < 20
