"""The controller is asked seldom and never waited for; what it says, or that it says nothing, is on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from asyncflow.flow.topic import topic_spec
from asyncflow.observe.live import status as status_module
from asyncflow.observe.live.status import CONTROLLER_URL, StatusPoll
from asyncflow.observe.live.view import RunView
from tests.observe.live.run_files import append, joined, run_config, step
from tests.observe.live.screen import Terminal
from transfer_queue.local import LocalQueue

pytestmark = pytest.mark.tools

SLOW_S = 1.0  # no look takes longer, whatever the controller does: it takes well under a millisecond on a machine that has time for it


def look_until(poll: StatusPoll, done: Callable[[], bool], within_s: float = 10.0) -> int:
    """Looks as often as it can. Returns how many questions were asked meanwhile."""
    deadline, asked, questions = time.monotonic() + within_s, -1.0, 0
    while not done() and time.monotonic() < deadline:
        begun_s = time.monotonic()
        poll.advance()
        assert time.monotonic() - begun_s < SLOW_S
        questions += poll._asked_s != asked
        asked = poll._asked_s
    return questions


def test_a_running_controller_is_asked_at_most_twice_a_second(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    poll = StatusPoll(config.run_dir, None)
    assert look_until(poll, lambda: False, 0.05) <= 1  # there is no controller yet, and that is no problem
    assert (poll.latest, poll.problem, poll.age_s()) == (None, None, None)
    with LocalQueue([topic_spec(config)]) as queue:
        (config.run_dir / CONTROLLER_URL).write_text(f"{queue.url}\n")
        look_until(poll, lambda: poll.latest is not None)
        assert poll.latest is not None
        assert poll.latest.topics[0].capacity == 96
        begun_s = time.monotonic()
        questions = look_until(poll, lambda: time.monotonic() > begun_s + 1.2)
        assert 1 <= questions <= 4  # of 1.2 s; the first may have been asked just before
    look_until(poll, lambda: poll.problem is not None)
    assert poll.problem is not None
    age_s = poll.age_s()
    assert age_s is not None
    assert age_s > 0.5  # the last answer is kept, and grows old
    poll.close()


def test_a_controller_that_hangs_delays_nobody_and_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module, "DEADLINE_S", 0.3)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf:
        port = deaf.bind_to_random_port("tcp://127.0.0.1")
        (tmp_path / CONTROLLER_URL).write_text(f"tcp://127.0.0.1:{port}")
        poll = StatusPoll(tmp_path, None)
        looks: list[None] = []
        look_until(poll, lambda: poll.problem is not None or looks.append(None) is not None)
        assert poll.problem == "no answer within 0.3 s"
        assert len(looks) > 10  # none of them waited for the answer
        assert look_until(poll, lambda: False, 0.3) <= 1  # after a failure it waits
        poll.close()


def test_a_key_that_is_not_there_is_told_and_no_error(tmp_path: Path) -> None:
    (tmp_path / CONTROLLER_URL).write_text("tcp://127.0.0.1:1")
    (tmp_path / "open.key").write_text("{}")
    (tmp_path / "open.key").chmod(0o644)
    poll = StatusPoll(tmp_path, str(tmp_path / "open.key"))
    poll.advance()
    assert poll.problem is not None
    assert "others may read it" in poll.problem


def test_the_picture_shows_the_status_and_says_when_it_is_old(tmp_path: Path) -> None:
    config, terminal = run_config(tmp_path), Terminal(140, 40)
    append(config.run_dir, joined("rollout"))
    view = RunView(config, console=terminal.console())
    with LocalQueue([topic_spec(config)]) as queue, queue.client("rollout-0", "rollout"):
        (config.run_dir / CONTROLLER_URL).write_text(queue.url)
        view.show_now()
    shown = "\n".join(terminal.rows)
    assert "0 of 96 permits used · admitted 0" in shown
    assert "rows ready (leased): reward 0 · actor_forward 0 · ref_forward 0 · advantage 0 · train 0" in shown
    assert "status" not in shown
    append(config.run_dir, step(1))
    view.status._answered_s -= 60.0  # the last answer was a minute ago
    view.show_now(timeout_s=0.2)  # nobody answers any more
    rows = terminal.rows
    assert "64 of 96 permits used · admitted 1" in "\n".join(rows[rows.index(next(row for row in rows if "1/120" in row)) :])
    assert rows[-1].startswith("the controller's last status is 1:0")
