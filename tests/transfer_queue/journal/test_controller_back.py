"""A controller in a process of its own that is killed and started again, among clients and a shard that were not."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import queue_run as run
from journal_members import gids_of, read_all, reward
from queue_processes import Process

from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.errors import QueueGone
from transfer_queue.messages import ModelVersion

WAIT_S = 30.0


class Running:
    """Controller and shard; the controller can be killed and started again."""

    def __init__(self, folder: Path, stack: ExitStack, *settings: str) -> None:
        self._folder, self._stack, self._settings = folder, stack, settings
        self.kills = 0
        self.controller, self.url = self._start()
        self.shard = stack.enter_context(Process("shard", self.url))
        self.shard.heard()

    def _start(self) -> tuple[Process, str]:
        process = self._stack.enter_context(Process("kept_controller", str(self._folder), *self._settings))
        return process, process.heard()

    def again(self) -> None:
        self.kills += 1
        self.controller.kill()
        self.controller, url = self._start()
        assert url == self.url, "members find it where it was"

    def client(self, name: str, role: str = "worker") -> QueueClient:
        return self._stack.enter_context(QueueClient.connect(self.url, name=name, role=role, timeout_s=WAIT_S))


@pytest.fixture(params=["commit", "always"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(tmp_path / "journal", stack, request.param)


def test_members_leases_parked_requests_and_bytes_are_there_after_a_kill(running: Running) -> None:
    source, rollout, stage, trainer = (running.client(name) for name in ("source", "rollout-0", "stage-0", "trainer"))
    assert run.put_prompts(source, range(4)) == 4
    leases = rollout.pull(run.TOPIC, loaded=0, limit=4).result(WAIT_S).groups
    waits = stage.take(run.TOPIC, "reward", limit=8, at_least=8, wait_s=60.0)
    assert not stage.poll(0.2)
    running.again()
    assert run.put_groups(rollout, leases, 0) == [], "the fences of before"
    taken = waits.result(WAIT_S)
    assert len(taken.rows) == 8, "a parked request is answered by the controller that came back"
    running.again()
    read_all(stage, taken)
    assert reward(stage, taken) == [], "the lease of before"
    batch = trainer.take(run.TOPIC, "trainer", limit=4, step=0).result(WAIT_S)
    running.again()
    assert trainer.commit(run.TOPIC, "trainer", "policy", 0, 0, [batch.lease]).result(WAIT_S).trained == 4
    running.again()
    assert run.clock(trainer) == 1
    assert run.comes_to_use(trainer, 0), "what was to be freed was told again"
    assert {client.incarnation for client in (source, rollout, stage, trainer)} == {0}


def test_a_controller_that_does_not_come_back_in_time_is_gone(tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = Running(tmp_path / "journal", stack, "commit", "1.5")
        client = running.client("a")
        pending = client.take(run.TOPIC, "reward", limit=1, wait_s=60.0)
        client.poll(0.1)
        started = time.monotonic()
        running.controller.kill()
        with pytest.raises(QueueGone, match=r"did not come back within 1\.5 s"):
            pending.result(WAIT_S)
        assert 1.0 < time.monotonic() - started < 10.0


class Producer(threading.Thread):
    """Puts groups whole, one at a time, under tokens of its own."""

    def __init__(self, client: QueueClient, groups: int) -> None:
        super().__init__(daemon=True)
        self.client, self.groups = client, groups
        self.gids: list[int] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while len(self.gids) < self.groups:
                self.gids += self._put(len(self.gids))
        except BaseException as error:  # looked at by the test
            self.error = error

    def _put(self, token: int) -> list[int]:
        rows = [[token, row] for row in range(2)]
        columns = {
            "prompt_ids": Jagged.of([[token]], "int32"),
            "item": [b"x"],
            "response_ids": Jagged.of(rows, "int32"),
            "logprobs": Jagged.of([[0.0]] * 2, "float32"),
        }
        return self.client.put(run.TOPIC, columns, rows_per_group=2, token=token, wait_s=WAIT_S).groups


def test_under_traffic_and_kills_at_random_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path) -> None:
    seed, groups, producers = random.randrange(2**32), 120, 2
    print(f"seed {seed}")
    with ExitStack() as stack:
        running = Running(tmp_path / "journal", stack, "commit", "30", "20000")
        made = [Producer(running.client(f"producer-{index}"), groups // producers) for index in range(producers)]
        stage, trainer = running.client("stage"), running.client("trainer")
        trainer.close_prompts(run.TOPIC, groups).result(WAIT_S)
        due: queue.SimpleQueue[bool] = queue.SimpleQueue()
        killer = threading.Thread(target=_kill, args=(running, random.Random(seed), due), daemon=True)
        for thread in (*made, killer):
            thread.start()
        trained = _train(stage, trainer, due)
        killer.join(WAIT_S)
        assert running.kills == 4
        for producer in made:
            producer.join(WAIT_S)
            assert producer.error is None, producer.error
        assert sorted(trained) == sorted(gid for producer in made for gid in producer.gids), "each once"
        assert len(set(trained)) == groups
        assert run.comes_to_use(stage, 0)
        ledger = trainer.status().result(WAIT_S).status.topics[0].ledger
        assert {state: count for state, count in ledger.items() if count} == {"trained": groups}


def _kill(running: Running, rng: random.Random, due: queue.SimpleQueue[bool]) -> None:
    """Somewhere in what follows on a moment that is due."""
    at_once = threading.Event()
    while due.get(timeout=90.0):
        at_once.wait(rng.uniform(0.0, 0.02))
        running.again()


def _train(stage: QueueClient, trainer: QueueClient, due: queue.SimpleQueue[bool]) -> list[int]:
    """Rewards and commits, one after the other, until the topic is over. Returns the groups in the order in which they were trained."""
    kills = deque([4, 24, 48, 80])
    trained: list[int] = []
    deadline = run.Deadline(90.0)
    while True:
        deadline.check(f"{len(trained)} groups were trained")
        taken = stage.take(run.TOPIC, "reward", limit=8, wait_s=0.0).result(WAIT_S)
        if taken.lease >= 0:
            assert reward(stage, taken) == []
        step = run.clock(trainer)
        batch = trainer.take(run.TOPIC, "trainer", limit=4, at_least=4, step=step, wait_s=0.05).result(WAIT_S)
        if batch.done:
            due.put(False)
            return trained
        if batch.lease < 0:
            continue
        gids = gids_of(batch)
        assert len(gids) == batch.batch
        trainer.commit(run.TOPIC, "trainer", "policy", 0, step, [batch.lease]).result(WAIT_S)
        trainer.published(ModelVersion("policy", 0, step + 1)).result(WAIT_S)
        trained += gids
        if kills and len(trained) >= kills[0]:
            kills.popleft()
            due.put(True)
