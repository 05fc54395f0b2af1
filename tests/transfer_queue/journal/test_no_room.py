"""A disk that is full in the middle of a run: the controller ends, and when there is room again nobody was told what never happened."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from controller_world import Settings
from journal_kept import Kept, KeptWorld

from transfer_queue import messages as m
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.journal.errors import JournalError


class Cramped(Kept):
    """Ends where there is no room for its journal, and is started again when somebody made some."""

    full = 0

    def handle(self, connection: bytes, request: m.Request) -> None:
        with self._started_again():
            super().handle(connection, request)

    def tick(self) -> None:
        with self._started_again():
            super().tick()

    def rest(self) -> None:
        with self._started_again():
            super().rest()

    @contextmanager
    def _started_again(self) -> Iterator[None]:
        try:
            yield
        except JournalError as error:
            if "File too large" not in str(error):
                raise
            self.full += 1
            allow(resource.RLIM_INFINITY)
            self.kill()


class CrampedWorld(KeptWorld):
    def start(self, config: CoreConfig) -> Core:
        self.kept = Cramped(self._journal, config, self.log)
        return self.kept  # type: ignore[return-value]


def allow(nbytes: int) -> None:
    """In any file that this process writes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture
def limited() -> Iterator[None]:
    """Files may be given a limit, beyond which writing fails; it ends with the test."""
    signals, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, signals)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("snapshot_bytes", [1 << 30, 3000])
@pytest.mark.parametrize("seed", range(12))
def test_the_books_of_an_observer_that_outlives_the_controller_stay_balanced(folder: Path, seed: int, snapshot_bytes: int) -> None:
    world = CrampedWorld(Settings(total=9, seed=seed), folder, snapshot_bytes=snapshot_bytes)
    allow(3000 + 1777 * seed)
    status = world.run()
    assert world.kept.full == 1
    assert status.reason == "completed"
    assert status.topics[0].ledger["trained"] == 9 == len(set(world.trained_gids))
