"""A minute of kill -9 at random moments, also while a controller comes back and while the queue is saved: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import queue_run as run
from journal_members import gids_of, reward
from queue_processes import Process

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.errors import QueueError
from transfer_queue.journal.logs import numbers
from transfer_queue.saving.folder import read_bytes, read_state
from transfer_queue.saving.saver import save

SECONDS = 45.0  # of kills
KILL_S = 1.5  # mean time between two
WAIT_S = 60.0
SNAPSHOT_BYTES = 200_000


class Crew:
    """A controller, two shards, and threads that end with the first thing that goes wrong in one of them."""

    def __init__(self, folder: Path, stack: ExitStack, rng: random.Random) -> None:
        self._settings = (str(folder), "commit", str(WAIT_S), str(SNAPSHOT_BYTES))
        self._stack, self._rng = stack, rng
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.kills = self.saves = 0
        self.made: list[int] = []
        self.controller = Process("kept_controller", *self._settings)
        stack.callback(lambda: self.controller.__exit__(None, None, None))
        self.url = self.controller.heard()
        for index in range(2):
            stack.enter_context(Process("shard", self.url, f"shard-{index}")).heard()

    def client(self, name: str) -> QueueClient:
        return self._stack.enter_context(QueueClient.connect(self.url, name=name, role="worker", timeout_s=WAIT_S))

    def kill(self) -> None:
        """Now and then once more before it is back."""
        while not self.over.wait(self._rng.expovariate(1 / KILL_S)):
            self._start_again()
            while self._rng.random() < 0.3:
                self.over.wait(self._rng.uniform(0.0, 1.0))
                self._start_again()
            assert self.controller.heard() == self.url

    def _start_again(self) -> None:
        self.controller.__exit__(None, None, None)
        self.controller = Process("kept_controller", *self._settings)
        self.kills += 1

    def put(self, client: QueueClient, name: str) -> None:
        """Groups whole, each once: a put that a kill interrupts is sent again by the client."""
        while not self.over.is_set():
            token = self._rng.randrange(1 << 62)
            columns = {
                "prompt_ids": Jagged.of([[token % 97]], "int32"),
                "item": [name.encode()],
                "response_ids": Jagged.of([[token % 89, row] for row in range(2)], "int32"),
                "logprobs": Jagged.of([[0.0]] * 2, "float32"),
            }
            self.made += client.put(run.TOPIC, columns, rows_per_group=2, token=token, wait_s=1.0).groups

    def save(self, folder: Path) -> None:
        while not self.over.wait(1.0):
            try:
                save(self.url, folder / str(self.saves), timeout_s=WAIT_S)
            except QueueError as error:  # a controller that came back out of a snapshot has nothing of a save
                if "begin the save again" not in str(error):
                    raise
                continue
            assert read_state(folder / str(self.saves))
            list(read_bytes(folder / str(self.saves)))
            self.saves += 1

    def thread(self, function: object, *arguments: object) -> threading.Thread:
        def work() -> None:
            try:
                function(*arguments)  # type: ignore[operator]
            except BaseException as error:  # looked at by the test
                self.error = error
                self.over.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


def train(stage: QueueClient, trainer: QueueClient) -> list[int]:
    """One turn: what is there is rewarded, and a batch committed if there is a whole one, or the last."""
    taken = stage.take(run.TOPIC, "reward", limit=64, wait_s=0.0).result(WAIT_S)
    if taken.lease >= 0:
        assert reward(stage, taken) == []
    step = run.clock(trainer)
    batch = trainer.take(run.TOPIC, "trainer", limit=4, at_least=4, step=step, wait_s=0.05).result(WAIT_S)
    if batch.lease < 0:
        return []
    gids = gids_of(batch)
    read = trainer.read(batch.rows, ("prompt_ids", "response_ids", "logprobs", "reward"), run.spec())
    keys = batch.rows.keys()
    assert read["reward"].tolist() == [run.reward(*key) for key in keys]
    trainer.commit(run.TOPIC, "trainer", "policy", 0, step, [batch.lease]).result(WAIT_S)
    trainer.published(m.ModelVersion("policy", 0, step + 1)).result(WAIT_S)
    return gids


@pytest.mark.e2e
def test_a_minute_of_kills_at_random_moments_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    trained: list[int] = []
    with ExitStack() as stack:
        crew = Crew(tmp_path / "journal", stack, random.Random(seed))
        stage, trainer, looker = crew.client("stage"), crew.client("trainer"), crew.client("looker")
        killer, saver = crew.thread(crew.kill), crew.thread(crew.save, tmp_path / "saves")
        producers = [crew.thread(crew.put, crew.client(name), name) for name in ("producer-0", "producer-1")]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until and not crew.over.is_set():
            trained += train(stage, trainer)
        crew.over.set()
        for thread in (killer, saver, *producers):
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert crew.error is None, crew.error
        trainer.close_prompts(run.TOPIC, len(crew.made)).result(WAIT_S)
        deadline = run.Deadline(WAIT_S)
        while len(trained) < len(crew.made):
            deadline.check(f"{len(trained)} of {len(crew.made)} were trained")
            trained += train(stage, trainer)
        print(f"{crew.kills} kills, {crew.saves} saves, {len(trained)} groups, log {numbers(tmp_path / 'journal', 'log')}")
        assert sorted(trained) == sorted(crew.made), "each that was acknowledged, once"
        assert len(set(trained)) == len(trained)
        assert run.comes_to_use(looker, 0)
        ledger = looker.status().result(WAIT_S).status.topics[0].ledger
        assert {state: count for state, count in ledger.items() if count} == {"trained": len(trained)}
    assert crew.kills >= 10
    assert crew.saves >= 3
