"""What a worker hears of the run, and what becomes of it when it is not heard of."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from asyncflow.contracts.worker import EXPELLED, WorkerArgs
from asyncflow.worker import run_worker
from asyncflow.workers.control import WATCH_S
from asyncflow.workers.wake import Wake
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, desk, until
from transfer_queue.errors import QueueError, QueueTimeout
from transfer_queue.messages import OkDirective


def test_every_cancelled_attempt_reaches_the_loop_however_many_directives_came_meanwhile(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION) as found:
        found.put_prompts(2)
        context = found.context("rollout-0")
        leases = context.client.pull(found.topic, loaded=0, limit=2, wait_s=5.0).result(10.0).groups
        for lease in leases:
            context.client.drop_groups(found.topic, [lease.gid], "test").result(10.0)
            until(lambda gid=lease.gid: (gid in [told for told, _ in context.control._cancelled]), "the cancellation")
            revision = context.control.directive.revision
            found.client(f"joiner-{lease.gid}")  # another directive, which names it no more
            until(lambda old=revision: context.control.directive.revision > old, "a new directive")
        assert set(context.control.take_cancelled()) == {(lease.gid, lease.fence) for lease in leases}
        assert context.control.take_cancelled() == []


def test_a_worker_that_counts_as_dead_ends_so_that_it_may_be_started_again(tmp_path: Path) -> None:
    """Its heartbeat came too late: the run goes on without it, so its end must not end the run."""
    handler = signal.getsignal(signal.SIGTERM)
    with desk(tmp_path, NO_EVALUATION) as found:
        outsider = found.client("launcher", "launcher")

        def expel() -> None:
            until(lambda: any("scorer-0" in member for member in found.queue.status().members), "the worker joins")
            outsider.member_dead("scorer-0", "no message for 15 s").result(10.0)

        thread = threading.Thread(target=expel)
        thread.start()
        try:
            code = run_worker(WorkerArgs(role="scorer", name="scorer-0", controller=found.queue.url), None)
        finally:
            signal.signal(signal.SIGTERM, handler)
        thread.join()
        assert code == EXPELLED
        assert found.queue.status().state == "run"


@pytest.mark.parametrize("error", [QueueError("stale_owner", "a shard heard of it first"), QueueTimeout("its deadline passed"), KeyError("gid")])
def test_what_a_worker_raises_that_was_stopped_and_counts_as_dead_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It goes on where it was, before its heartbeat hears the news: whatever it meets there comes of that."""
    handler = signal.getsignal(signal.SIGTERM)

    class Stopped:
        def run(self) -> None:
            outsider.member_dead("scorer-0", "no message for 15 s").result(10.0)
            raise error

    monkeypatch.setattr("asyncflow.workers.roles.build_role", lambda context: Stopped())
    with desk(tmp_path, NO_EVALUATION) as found:
        outsider = found.client("launcher", "launcher")
        try:
            assert run_worker(WorkerArgs(role="scorer", name="scorer-0", controller=found.queue.url), None) == EXPELLED
        finally:
            signal.signal(signal.SIGTERM, handler)
        assert found.queue.status().state == "run"


def test_a_worker_that_lost_a_peer_leaves_the_word_to_who_knows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes a moment after the connection broke: its reason must stand, not this worker's."""
    handler = signal.getsignal(signal.SIGTERM)

    class Bereft:
        def run(self) -> None:
            outsider.member_dead("publisher-0", "killed by SIGKILL", fatal=True)  # on its way when the connection breaks
            raise ConnectionError("the publisher closed the connection")

    monkeypatch.setattr("asyncflow.workers.roles.build_role", lambda context: Bereft())
    with desk(tmp_path, NO_EVALUATION) as found:
        outsider = found.client("launcher", "launcher")
        try:
            assert run_worker(WorkerArgs(role="scorer", name="scorer-0", controller=found.queue.url), None) == 1
        finally:
            signal.signal(signal.SIGTERM, handler)
        assert found.queue.status().reason == "publisher-0 died: killed by SIGKILL"


def test_a_late_wake_writes_into_nobody_elses_descriptor() -> None:
    wake = Wake()
    wake.close()
    read, write = os.pipe()  # very likely the numbers that the wake had
    os.set_blocking(read, False)
    wake.set()
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    os.close(read)
    os.close(write)


def test_a_poked_heartbeat_waits_for_a_slow_controller_as_long_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was stopped longer than `heartbeat_s` lost exactly those who had just told it something."""
    with desk(tmp_path, NO_EVALUATION) as found:
        control = found.context("scorer-0").control
        control.close()  # its thread is gone: the beat below is ours
        waits: list[float] = []

        class Slow:
            def done(self) -> bool:
                return False

            def cancel(self) -> None: ...

            def result(self, timeout_s: float) -> OkDirective:
                waits.append(timeout_s)
                return OkDirective(directive=control.directive)

        monkeypatch.setattr(control, "_watch", lambda *_, **__: Slow())
        monkeypatch.setattr(control, "_poke", Wake())
        monkeypatch.setattr(control._client, "poll", lambda *_: set())  # poked at once
        control._beat()
    assert waits[0] == pytest.approx(WATCH_S + 2 * control._deadline_s, abs=0.5)  # the second is the last beat, of leaving
