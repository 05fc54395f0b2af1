"""A kill -9 in the middle of a save: the folder is whole or not there, the queue goes on, and the next save is as good as any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import queue_run as run
from journal_members import WAIT_S, finish, reward
from queue_processes import Process

from transfer_queue.client import QueueClient
from transfer_queue.local import LocalQueue
from transfer_queue.messages import StatusRecord
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save

GROUPS = 8


class Kept:
    """Controller with a journal and two shards, each a process."""

    def __init__(self, folder: Path, snapshot_bytes: int) -> None:
        self._stack = ExitStack()
        self._settings = (str(folder), "commit", "20", str(snapshot_bytes))
        self.controller = self._start("kept_controller", *self._settings)
        self.url = self.controller.heard()
        self.shards = [self._shard(index) for index in range(2)]

    def _start(self, *what: str) -> Process:
        return self._stack.enter_context(Process(*what))

    def _shard(self, index: int) -> Process:
        shard = self._start("shard", self.url, f"shard-{index}")
        shard.heard()
        return shard

    def saver(self, folder: Path) -> Process:
        return self._start("saver", self.url, str(folder))

    def restart_controller(self) -> None:
        self.controller.kill()
        self.controller = self._start("kept_controller", *self._settings)
        assert self.controller.heard() == self.url

    def restart_shard(self) -> None:
        self.shards[1].kill()
        with QueueClient.outsider(self.url) as launcher:
            launcher.member_dead("shard-1", "killed by the test").result(WAIT_S)
        self.shards[1] = self._shard(1)

    def client(self, name: str) -> QueueClient:
        return QueueClient.connect(self.url, name=name, role="worker", timeout_s=WAIT_S)

    def status(self) -> StatusRecord:
        with QueueClient.outsider(self.url) as looker:
            return looker.status().result(WAIT_S).status

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.e2e), 1 << 30], ids=["snapshots", "inputs"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    """8 prompts put: 5 groups handed out, 4 of them complete, two of those with rewards. Who had work left."""
    kept = Kept(tmp_path / "journal", request.param)
    with ExitStack() as stack:
        stack.callback(kept.close)
        source, rollout, stage = (stack.enter_context(kept.client(name)) for name in ("source", "rollout-0", "stage"))
        for gid in range(GROUPS):  # one by one, so that they lie on both shards
            run.put_prompts(source, range(gid, gid + 1))
        for lease in rollout.pull(run.TOPIC, 0, 5).result(WAIT_S).groups[:4]:
            run.put_groups(rollout, [lease], 0)
        assert reward(stage, stage.take(run.TOPIC, "reward", limit=4).result(WAIT_S)) == []
        for client in (rollout, stage):
            client.leave().result(WAIT_S)
        yield kept


def saving(queue: Kept, folder: Path, step: int) -> Process:
    """A saver that waits before this step."""
    saver = queue.saver(folder)
    while saver.heard() != str(step):
        saver.tell("")
    return saver


def on_to_the_end(saver: Process) -> str:
    """How it ended."""
    saver.tell("")
    while (said := saver.heard()).isdigit():
        saver.tell("")
    return said


def check_next(queue: Kept, folder: Path) -> None:
    """A save into that folder is whole, and so is the queue; and nothing is held any more."""
    save(queue.url, folder)
    assert list(folder.parent.iterdir()) == [folder]
    with LocalQueue([run.spec()], shards=1) as other:
        load(other.url, folder)
        assert len(set(finish(other, GROUPS))) == GROUPS
    assert len(set(finish(queue, GROUPS))) == GROUPS
    with queue.client("looker") as looker:
        assert run.comes_to_use(looker, 0)


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.e2e), 1, pytest.param(3, marks=pytest.mark.e2e)])
def test_a_controller_that_is_killed_meanwhile_lets_the_save_be_whole_or_refuses_it(queue: Kept, tmp_path: Path, step: int) -> None:
    folder = tmp_path / "saves" / "saved"
    saver = saving(queue, folder, step)
    queue.restart_controller()
    ended = on_to_the_end(saver)
    if step == 0 and ended != "saved":  # a snapshot does not keep what was frozen for a save
        assert "begin the save again" in ended
        assert list(folder.parent.iterdir()) == []
        check_next(queue, folder)
        return
    assert ended == "saved"
    with LocalQueue([run.spec()], shards=1) as other:
        load(other.url, folder)
        assert sorted(finish(other, GROUPS)) == list(range(GROUPS))
    check_next(queue, folder.with_name("next") / "saved")


def test_a_shard_that_is_killed_meanwhile_ends_the_save_and_nothing_is_left_of_it(queue: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "saves" / "saved"
    saver = saving(queue, folder, 1)
    queue.restart_shard()
    assert "failed" in on_to_the_end(saver)
    assert list(folder.parent.iterdir()) == []
    with queue.client("source") as source:  # as every source does whose prompts are asked for again
        cursor = source.demand(run.TOPIC, wait_s=0.0).result(WAIT_S).cursor
        run.put_prompts(source, range(cursor, cursor + 2 * GROUPS))
    check_next(queue, folder)


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.e2e), 2])
def test_a_saver_that_is_killed_holds_nothing_and_its_folder_goes_with_the_next_save(queue: Kept, tmp_path: Path, step: int) -> None:
    folder = tmp_path / "saves" / "saved"
    saving(queue, folder, step).kill()
    assert not folder.exists()
    check_next(queue, folder)
