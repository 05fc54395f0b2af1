"""A queue saved while it works and loaded into another one, with another number of shards."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import queue_run as run
from controller_bench import Clock, Log
from controller_world import Settings, World
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_members import finish, reward

from transfer_queue import messages as m
from transfer_queue.__main__ import main
from transfer_queue.controller.core import Core, CoreConfig
from transfer_queue.controller.freezing import freeze
from transfer_queue.controller.image import decoded
from transfer_queue.errors import QueueError
from transfer_queue.frozen import from_bytes, to_bytes
from transfer_queue.local import LocalQueue
from transfer_queue.saving.folder import Damaged, Writing, read_bytes, read_state
from transfer_queue.saving.loader import load
from transfer_queue.saving.places import Named, chunks
from transfer_queue.saving.saver import save

WAIT_S = 10.0
ROOT = Path(__file__).parents[3]


@contextmanager
def half_done(shards: int, alone: bool = False) -> Iterator[LocalQueue]:
    """8 prompts put: 4 groups complete, two of them with rewards, one being generated, the others waiting. `alone`: nobody has anything of them."""
    with LocalQueue([run.spec()], shards=shards, heartbeat_s=300.0) as queue, ExitStack() as stack:
        source, rollout, stage = (stack.enter_context(queue.client(name)) for name in ("source", "rollout-0", "stage"))
        run.put_prompts(source, range(8))
        leases = rollout.pull(run.TOPIC, 0, 5).result(WAIT_S).groups
        run.put_groups(rollout, leases[:4], 0)
        taken = stage.take(run.TOPIC, "reward", limit=4).result(WAIT_S)
        assert reward(stage, taken) == []
        assert stage.take(run.TOPIC, "reward", limit=1).result(WAIT_S).lease >= 0  # never answered
        for client in (rollout, stage) if alone else ():
            client.leave().result(WAIT_S)
        yield queue


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_what_was_saved_goes_on_in_another_queue_with_another_number_of_shards(tmp_path: Path, before: int, after: int) -> None:
    with half_done(before) as queue:
        saved = save(queue.url, tmp_path / "saved")
        assert (saved.groups, saved.prompts) == (5, 3)
        status = queue.status().topics[0]
    with LocalQueue([run.spec()], shards=after) as queue:
        load(queue.url, tmp_path / "saved")
        loaded = queue.status().topics[0]
        assert (loaded.open, loaded.prompts_waiting, loaded.stored_rows, loaded.version) == (5, 3, 8, 0)
        assert loaded.consumers[0].done_rows == status.consumers[0].done_rows == 4
        assert loaded.consumers[0].leased_rows == 0, "what was under way is ready again"
        with queue.client("looker") as looker:
            assert run.used_bytes(looker) == saved.nbytes
        assert sorted(finish(queue, 8)) == list(range(8))
        with queue.client("looker") as looker:
            assert run.comes_to_use(looker, 0)


def test_blocks_that_end_meanwhile_are_held_until_the_save_is_over() -> None:
    with half_done(1, alone=True) as queue, queue.client("saver") as saver:
        reply = saver.call(m.Save(member="", incarnation=0), WAIT_S)
        used = run.used_bytes(saver)
        assert sorted(finish(queue, 8)) == list(range(8))
        assert run.used_bytes(saver) >= used
        named = Named(decoded(saver.call(m.ReadImage(image=reply.image, start=0), WAIT_S).data))
        assert named.nbytes > 0
        saver.call(m.EndSave(member="", incarnation=0), WAIT_S)
        assert run.comes_to_use(saver, 0)
        with pytest.raises(QueueError, match="begin the save again"):
            saver.call(m.ReadImage(image=reply.image, start=0), WAIT_S)


def test_a_saver_that_dies_holds_nothing_any_more() -> None:
    with half_done(1, alone=True) as queue, queue.client("looker") as looker:
        with queue.client("saver") as saver:
            saver.call(m.Save(member="", incarnation=0), WAIT_S)
        looker.member_dead("saver", "killed by the test").result(WAIT_S)
        finish(queue, 8)
        assert run.comes_to_use(looker, 0)


def test_saves_under_traffic_are_each_whole(tmp_path: Path) -> None:
    """A producer and a trainer go on, but for what is to be trained out of the images; every one loads, and is worked off to the last byte."""
    with LocalQueue([run.spec()], shards=2) as queue, queue.client("source") as source:
        stop = threading.Event()
        run.put_prompts(source, range(240))
        thread = threading.Thread(target=_work, args=(queue, stop), daemon=True)
        thread.start()
        for turn in range(3):
            save(queue.url, tmp_path / str(turn))
        stop.set()
        thread.join(WAIT_S)
    for turn in range(3):
        with LocalQueue([run.spec()], shards=1) as queue:
            load(queue.url, tmp_path / str(turn))
            trained = queue.status().topics[0].ledger["trained"]
            assert sorted(finish(queue, 8)) == list(range(trained, trained + 8))


def _work(queue: LocalQueue, stop: threading.Event) -> None:
    with ExitStack() as stack:
        rollout, stage, trainer = (stack.enter_context(queue.client(name)) for name in ("rollout-1", "stage-1", "trainer-1"))
        while not stop.is_set() and (step := run.clock(trainer)) < (240 - 16) // 4:  # a slow machine saves slower than it trains
            run.put_groups(rollout, rollout.pull(run.TOPIC, step, 8, wait_s=0.0).result(WAIT_S).groups, step)
            taken = stage.take(run.TOPIC, "reward", limit=100, wait_s=0.0).result(WAIT_S)
            if taken.lease >= 0:
                reward(stage, taken)
            batch = trainer.take(run.TOPIC, "trainer", limit=4, at_least=4, step=step, wait_s=0.1).result(WAIT_S)
            if batch.lease >= 0:
                trainer.commit(run.TOPIC, "trainer", "policy", 0, step, [batch.lease]).result(WAIT_S)


def test_a_load_into_a_queue_that_is_not_empty_or_is_another_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with half_done(1) as queue:
        save(queue.url, tmp_path / "saved")
        with pytest.raises(QueueError, match="is not empty"):
            load(queue.url, tmp_path / "saved")
    columns = (*run.spec().columns[:-1], m.Column("reward", "float32", "scalar", "reward"))
    other = msgspec.structs.replace(run.spec(), columns=columns)
    with LocalQueue([other]) as queue:
        with pytest.raises(QueueError, match="has other columns"):
            load(queue.url, tmp_path / "saved")
        with queue.client("looker") as looker:
            assert run.comes_to_use(looker, 0)
        assert queue.status().topics[0].open == 0


@pytest.mark.parametrize("name", ["state", "bytes"])
def test_a_damaged_folder_is_refused(tmp_path: Path, name: str) -> None:
    with half_done(1) as queue:
        save(queue.url, tmp_path / "saved")
    path = tmp_path / "saved" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with LocalQueue([run.spec()]) as queue:
        with pytest.raises(Damaged):
            load(queue.url, tmp_path / "saved")
        assert queue.status().topics[0].open == 0


def test_a_save_that_fails_leaves_nothing_behind_and_none_is_replaced(tmp_path: Path) -> None:
    with half_done(1) as queue:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("transfer_queue.saving.folder.write", _full)
            with pytest.raises(OSError, match="full"):
                save(queue.url, tmp_path / "saved")
        assert list(tmp_path.iterdir()) == []
        save(queue.url, tmp_path / "saved")
        with pytest.raises(FileExistsError, match="never replaced"):
            save(queue.url, tmp_path / "saved")


def test_two_saves_into_one_folder_do_not_spoil_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with Writing(folder) as late:
        with Writing(folder) as first:
            late.add(b"late")
            first.add(b"first")
            Writing(folder).__exit__(None, None, None)  # one that was refused
            first.finish(b"of the first")
        with pytest.raises(FileExistsError, match="never replaced"):
            late.finish(b"of the late one")
    assert read_state(folder) == b"of the first"
    assert [bytes(chunk) for chunk in read_bytes(folder)] == [b"first"]
    assert list(tmp_path.iterdir()) == [folder]


def test_what_a_killed_saver_left_goes_with_the_next_save_into_that_folder(tmp_path: Path) -> None:
    code = "import os, pathlib, sys; from transfer_queue.saving.folder import Writing; Writing(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "saved")], cwd=ROOT, check=False, timeout=WAIT_S)
    assert ended.returncode == -9
    (left,) = tmp_path.iterdir()
    with Writing(tmp_path / "saved.other"):
        assert left.exists(), "it is of another save"
    with Writing(tmp_path / "saved"):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def _full(*_: object) -> int:
    raise OSError("the disk is full")


def test_the_commands_save_and_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with half_done(1) as queue:
        assert main(["save", str(tmp_path / "saved"), "--controller", queue.url]) == 0
    with LocalQueue([run.spec()]) as queue:
        assert main(["load", str(tmp_path / "saved"), "--controller", queue.url]) == 0
        assert main(["load", str(tmp_path / "saved"), "--controller", queue.url]) == 1
    said = capsys.readouterr()
    assert "5 open groups, 3 waiting prompts" in said.out
    assert "is not empty" in said.err


def saved(core: Core) -> bytes:
    who = {"member": "saver", "incarnation": 0}
    core.handle(b"s", m.Register(id=1, name="saver", role="saver", pid=1, host="h"))
    core.handle(b"s", m.Save(id=2, **who))  # type: ignore[arg-type]
    reply = core.outbox[-1][1]
    assert isinstance(reply, m.OkSave)
    core.handle(b"s", m.ReadImage(id=3, image=reply.image, start=0))
    reply = core.outbox[-1][1]
    assert isinstance(reply, m.OkImage)
    core.outbox.clear()
    return reply.data


def loaded(config: CoreConfig, log: Log, clock: Clock, data: bytes) -> Core:
    """A fresh state machine that took the image in."""
    core = Core(config, log, clock)
    core.handle(b"l", m.Register(id=1, name="loader", role="loader", pid=1, host="h"))
    half = len(data) // 2
    for start, part in ((0, data[:half]), (half, data[half:]), (half, data[half:])):  # a repeat changes nothing
        core.handle(b"l", m.LoadPart(id=2, member="loader", incarnation=0, start=start, data=part))
    core.handle(b"l", m.Load(id=3, member="loader", incarnation=0, nbytes=len(data)))
    assert not [reply for _, reply in core.outbox if isinstance(reply, m.ErrorReply)], core.outbox
    return core


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 400), policy=st.sampled_from(["wait", "drop"]))
@settings(max_examples=15)
def test_any_state_is_loaded_with_everything_ready_again_and_its_ledger_balanced(seed: int, steps: int, policy: m.Policy) -> None:
    world = World(Settings(seed=seed, policy=policy, hand_backs=0.1))
    for _ in range(steps):
        world.step()
    named = Named(decoded(saved(world.core)))
    assert sum(map(len, chunks(named.places))) == len(named.places)
    elsewhere = named.places + np.array([0, 1_000_000, 0, 0])
    log = Log()
    core = loaded(world.config, log, world.clock, to_bytes(named.renamed(elsewhere)))
    was, topic = world.core.topics["policy"], core.topics["policy"]
    assert (len(topic.groups), topic.stored_rows, topic.version) == (len(was.groups), was.stored_rows, was.version)
    assert not topic.groups.attempts
    assert list(topic.leases) == []
    assert topic.ledger.lives == was.ledger.lives
    assert {block - 1_000_000 for block in core.live_blocks(0)} == set(world.core.live_blocks(0))
    states = [group.state for group in topic.groups.values()]
    for state in ("admitted", "generating", "complete", "leased"):
        assert topic.ledger.counts[state] == states.count(state) == log.counts.get(state, 0)


def test_records_with_arrays_come_back_as_they_were() -> None:
    world = World(Settings(seed=1, hand_backs=0.1))
    for _ in range(200):
        world.step()
    frozen = freeze(world.core.topics["policy"])
    data = to_bytes(frozen)
    assert to_bytes(from_bytes(type(frozen), data)) == data
