"""How long a controller takes to come back: its work is measured, and a snapshot comes before there is more of it than was asked for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from controller_bench import spec
from controller_world import Settings
from journal_kept import KeptWorld, Silent

from transfer_queue import messages as m
from transfer_queue.controller.core import CoreConfig
from transfer_queue.journal.journal import SHARE
from transfer_queue.journal.logs import numbers
from transfer_queue.journal.recovery import Opened, open_journal, restore
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.wire import encode

CONFIG = CoreConfig(topics=[spec()], heartbeat_s=1e9)


def beats(opened: Opened, count: int) -> None:
    """So many heartbeats: small, and each an input."""
    for number in range(1, count + 1):
        request = m.Register(id=number, name="a", role="rollout", pid=1, host="h")
        opened.journal.request(b"x", encode(request), request)
        opened.core.handle(b"x", request)
        opened.journal.keep(opened.core.outbox)
        opened.core.outbox.clear()
        opened.core.sweeps.clear()
        opened.journal.rest()


def closed(opened: Opened) -> None:
    opened.journal.close()
    os.close(opened.holder)


def test_small_inputs_that_take_long_are_in_a_snapshot_though_they_are_few_bytes(folder: Path) -> None:
    settings = JournalSettings(str(folder), replay_s=0.05)
    opened = open_journal(settings, CONFIG, Silent())
    begun = time.thread_time()
    while numbers(folder, "log")[-1] == 0:
        beats(opened, 10)
        assert time.thread_time() - begun < 5.0
    assert time.thread_time() - begun > 0.04
    closed(opened)
    begun = time.thread_time()
    assert restore(folder, CONFIG, Silent()) is not None
    assert time.thread_time() - begun < 0.5


def test_what_it_took_to_come_back_counts_for_the_next_time(folder: Path) -> None:
    world = KeptWorld(Settings(seed=1), folder)
    for _ in range(300):
        world.step()
    world.kept.leave()
    settings = JournalSettings(str(folder), replay_s=0.001)
    opened = open_journal(settings, world.config, Silent())
    opened.core.outbox.clear()
    opened.journal.rest()
    assert numbers(folder, "log")[-1] == 1, "a kill now and then would make each start longer than the one before"
    closed(opened)


def test_snapshots_take_no_more_than_their_share_of_the_time_however_short_a_restart_is_to_be(folder: Path) -> None:
    opened = open_journal(JournalSettings(str(folder), replay_s=1e-6), CONFIG, Silent())
    begun, spent_s = time.thread_time(), [0.0]
    while time.thread_time() - begun < 0.5 or len(spent_s) < 4:
        beats(opened, 1)
        if opened.journal._last_s != spent_s[-1]:
            spent_s.append(opened.journal._last_s)
    assert sum(spent_s[:-1]) < 2 * SHARE * (time.thread_time() - begun)
    closed(opened)


@pytest.mark.parametrize("replay_s", [0.0, -1.0, float("nan")])
def test_a_restart_in_no_time_is_refused(folder: Path, replay_s: float) -> None:
    with pytest.raises(ValueError, match="replay_s"):
        open_journal(JournalSettings(str(folder), replay_s=replay_s), CONFIG, Silent())
