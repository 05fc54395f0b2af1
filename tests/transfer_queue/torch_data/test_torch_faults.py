"""Whatever ends an iteration, its rows go to others at once and nothing of it is left: heartbeats, which tell it last, are missed after 300 s."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_streams import BATCH, ROWS, TOPIC, Served, drained, leaves_nothing, workers

from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError, QueueGone, QueueTimeout
from transfer_queue.torch_data import Batch, QueueDataset, QueueLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores is what is tested
SOON_S = 4.0  # less than the 5 s after which torch gives a worker up that does not come back


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def dataset(served: Served, **settings: Any) -> QueueDataset:
    return QueueDataset(served.url, TOPIC, "reader", **{"timeout_s": 10.0, "limit": 5, **settings})


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds


def comes_true(condition: Any, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.02)
    return True


def killed_worker(served: Served, keys: list[tuple[int, int]]) -> None:
    came, before = 0, workers()
    for batch in QueueLoader(dataset(served), num_workers=2):
        came += len(batch)
        if came == len(keys) // 2:
            victim, _ = sorted(workers() - before, key=lambda child: child.pid)
            victim.kill()
    raise AssertionError("the loader went on without its worker")


def test_rows_of_a_worker_that_is_killed_come_back_at_once_and_each_is_acknowledged_once(served: Served) -> None:
    done = served.consumer("reader").done_rows
    keys = served.fill(30)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*(killed by signal|exited unexpectedly)"):
        killed_worker(served, keys)
    before = served.consumer("reader").done_rows - done
    assert before < len(keys)
    with leaves_nothing(served):
        seen = drained(QueueLoader(dataset(served), num_workers=2), len(keys) - before)
    assert set(seen.values()) == {1}
    assert seen.total() + before == len(keys)
    assert served.consumer("reader").done_rows - done == len(keys)


def killed_in_a_loop(loader: QueueLoader, before: set[Any]) -> None:
    for _ in loader:
        kill_one(before)


def killed_between_two(loader: QueueLoader, before: set[Any]) -> None:
    for _ in loader:
        break
    kill_one(before)


@pytest.mark.parametrize("killed", [killed_in_a_loop, killed_between_two])
def test_a_loader_whose_workers_persist_goes_on_after_one_of_them_was_killed(killed: Callable[[QueueLoader, set[Any]], None]) -> None:
    with Served() as own:
        keys, before = own.fill(12), workers()
        with leaves_nothing(own), QueueLoader(dataset(own), num_workers=2, persistent_workers=True) as loader:
            with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):  # torch raises it wherever we are
                killed(loader, before)
            assert own.consumer("reader").ready_rows == len(keys)
            assert drained(loader, len(keys)) == Counter(keys)
            assert len(workers() - before) == 2


def kill_one(before: set[Any]) -> None:
    victim = min(workers() - before, key=lambda child: child.pid)
    victim.kill()
    threading.Event().wait(10.0)  # torch's signal handler raises


@pytest.mark.e2e
def test_a_member_whose_heartbeats_have_ended_takes_no_more_rows() -> None:
    with Served() as own:
        own.fill(4)
        stream = iter(QueueLoader(dataset(own, timeout_s=0.3)))
        next(stream)
        beating = next(thread for thread in threading.enumerate() if thread.name == "queue-heartbeat")
        own.freeze()
        beating.join(5.0)
        own.thaw()
        with pytest.raises(QueueTimeout, match="no reply within"):
            next(stream)


@pytest.mark.parametrize("persist", [False, True])
def test_a_loop_that_is_left_while_workers_wait_for_rows_ends_them_at_once(served: Served, persist: bool) -> None:
    keys = served.fill(3)
    with leaves_nothing(served), within(SOON_S):
        loader = QueueLoader(dataset(served), num_workers=3, persistent_workers=persist)
        for batch in loader:
            if len(batch) < 5:
                break  # most of them are parked at the controller by now
        assert comes_true(lambda: served.consumer("reader").leased_rows == 0)
        loader.close()
    assert drained(QueueLoader(dataset(served)), served.consumer("reader").ready_rows).keys() <= set(keys)


def test_an_iteration_that_is_begun_ends_the_one_before(served: Served) -> None:
    keys = served.fill(6)
    with leaves_nothing(served):
        loader = QueueLoader(dataset(served), num_workers=2)
        first = iter(loader)
        next(first)
        assert drained(loader, len(keys)) == Counter(keys)
        assert list(first) == []


def raising(batch: Batch) -> Batch:
    if any(gid % 4 == 3 for gid in batch.gids):
        raise ValueError(f"the text of {batch.receipt.keys()[0]} is no text")
    return batch


@pytest.mark.parametrize("processes", [0, 2])
def test_an_exception_of_a_worker_is_raised_and_what_it_held_comes_back(served: Served, processes: int) -> None:
    done = served.consumer("reader").done_rows
    keys = served.fill(12)
    with pytest.raises(ValueError, match="is no text"):
        for _ in QueueLoader(dataset(served), num_workers=processes, collate_fn=raising):
            pass
    left = len(keys) - (served.consumer("reader").done_rows - done)
    assert left > 0
    assert comes_true(lambda: served.consumer("reader").ready_rows == left)
    assert set(drained(QueueLoader(dataset(served)), left).values()) == {1}


def interrupted(loader: QueueLoader) -> None:
    for _ in loader:
        raise KeyboardInterrupt


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what it puts into the background with SIGINT ignored, and so might these tests have been started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("processes", [0, 2])
def test_ctrl_c_gives_leases_back_while_a_batch_is_worked_on_and_while_one_is_waited_for(served: Served, processes: int) -> None:
    keys = served.fill(5)
    with leaves_nothing(served):
        with pytest.raises(KeyboardInterrupt):
            interrupted(QueueLoader(dataset(served), num_workers=processes))
        assert comes_true(lambda: served.consumer("reader").ready_rows == len(keys))
        drained(QueueLoader(dataset(served)), len(keys))
        interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        interrupt.start()
        with within(SOON_S), pytest.raises(KeyboardInterrupt):
            list(QueueLoader(dataset(served), num_workers=processes))  # there is nothing to be had
        interrupt.join()
        gc.collect()


def test_a_second_loader_of_the_same_name_takes_the_first_ones_place_which_says_so(served: Served) -> None:
    keys = served.fill(10)
    first = iter(dataset(served))
    next(first)
    second = iter(QueueLoader(dataset(served)))
    next(second)
    with pytest.raises(QueueError, match="stale_incarnation") as refused:
        list(first)
    assert "names of their own" in refused.value.__notes__[0]
    second.close()
    assert drained(QueueLoader(dataset(served)), len(keys)) == Counter(keys)


def killing(own: Served, loader: QueueLoader) -> None:
    for number, _ in enumerate(loader):
        if number == 6:
            own.kill()


@pytest.mark.e2e
@pytest.mark.parametrize("processes", [0, 2])
def test_a_controller_that_is_killed_is_an_error_and_no_end_of_the_data(processes: int) -> None:
    before = workers()
    with Served() as own:
        own.fill(6)
        loader = QueueLoader(QueueDataset(own.url, TOPIC, "reader", limit=1, timeout_s=2.0), num_workers=processes)
        with within(15.0), pytest.raises(QueueGone, match="closed the connection"):
            killing(own, loader)
        assert loader.ended is None
    gc.collect()
    assert workers() <= before


def test_rows_whose_lease_ran_out_are_counted_when_they_are_acknowledged_too_late() -> None:
    with Served(lease_s=0.3) as own:
        keys = own.fill(2)
        slow = QueueLoader(dataset(own, limit=len(keys)))
        for batch in slow:
            assert drained(QueueLoader(dataset(own, name="quick")), len(keys)) == Counter(keys)  # parked until the lease has run out
            slow.acknowledge()
            assert slow.refused == len(batch) == len(keys)
            break
        assert own.consumer("reader").done_rows == len(keys)


def test_groups_that_end_between_lease_and_read_are_left_out_and_the_rest_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    read = QueueClient.read
    with Served() as own:
        keys = own.fill(BATCH + 1)

        def late(client: QueueClient, rows: Any, *rest: Any, **more: Any) -> Any:
            assert [(ref.gid, ref.row) for ref in rows] == keys
            monkeypatch.setattr(QueueClient, "read", read)
            train_a_step(own)
            return read(client, rows, *rest, **more)

        monkeypatch.setattr(QueueClient, "read", late)
        assert drained(QueueLoader(dataset(own, limit=len(keys))), ROWS) == Counter(keys[-ROWS:])
        assert own.consumer("reader").done_rows == ROWS


def train_a_step(served: Served) -> None:
    """The oldest groups end; returns when their bytes are gone."""
    with QueueClient.connect(served.url, name="observer-0", role="rollout", timeout_s=10.0) as observer:
        before = sum(shard.used_bytes for shard in observer.shard_status().values())
        loader = QueueLoader(QueueDataset(served.url, TOPIC, "trainer", timeout_s=10.0))
        for _ in loader:
            if loader.step_complete:
                loader.commit()
                break
        assert comes_true(lambda: sum(shard.used_bytes for shard in observer.shard_status().values()) < before)
        observer.leave().result(5.0)


# ------------------------------------------------------------ trainers that die

TRAINER = """
import sys
from transfer_queue.torch_data import QueueDataset, QueueLoader
end, url, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
stream = iter(QueueLoader(QueueDataset(url, "t", "reader", limit=5, name="dying"), num_workers=workers))
next(stream)
print("has a batch", flush=True)
if end == "wait":
    sys.stdin.read()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("end", "processes"), [("wait", 2), ("exit", 0)])
def test_rows_of_a_trainer_that_is_killed_or_ends_come_back_at_once(served: Served, end: str, processes: int) -> None:
    keys = served.fill(8)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, end, served.url, str(processes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "has a batch\n"
    if end == "wait":
        assert comes_true(lambda: len(served.members()) == processes)
        trainer.kill()
    assert comes_true(lambda: served.members() == set(), SOON_S)
    trainer.wait(20)
    for pipe in (trainer.stdin, trainer.stdout):
        assert pipe is not None
        pipe.close()
    assert served.consumer("reader").ready_rows == len(keys)
    assert drained(QueueLoader(dataset(served)), len(keys)) == Counter(keys)


# ------------------------------------------------------------ what is left


@pytest.mark.e2e
@pytest.mark.parametrize("processes", [0, 2])
def test_iterations_leave_no_descriptors_and_no_threads(served: Served, processes: int) -> None:
    def turn() -> None:
        keys = served.fill(4)
        assert drained(QueueLoader(dataset(served), num_workers=processes), len(keys)) == Counter(keys)
        gc.collect()

    turn()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(2):
        turn()
    assert comes_true(lambda: len(os.listdir("/proc/self/fd")) <= before)  # zmq's own thread closes sockets
    assert comes_true(lambda: threading.active_count() <= threads)  # and Python's own, that of a queue which is closed
