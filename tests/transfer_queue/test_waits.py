"""`python -m transfer_queue status` on a live queue: the same report that a stall leaves, before it is one."""

from __future__ import annotations

import re
import threading

import pytest
import queue_run

from transfer_queue.__main__ import main
from transfer_queue.local import LocalQueue
from transfer_queue.messages import Blame, StallReport
from transfer_queue.waits import GOING_ON_S, render


def test_status_prints_who_waits_since_when_and_whose_move_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with LocalQueue([queue_run.spec()]) as queue, queue.client("trainer-0", "trainer") as trainer:
        topic = trainer.registration.topics[0]
        consumer = next(consumer.name for consumer in topic.consumers if consumer.terminal)
        pending = trainer.take(topic.name, consumer, limit=1, step=0, wait_s=30.0)
        trainer.status().result(5.0)  # answered after the take before it was parked
        assert main(["status", "--controller", queue.url]) == 0
        assert "\nit goes on\n" in capsys.readouterr().out, "nobody is accused in the first moment"
        threading.Event().wait(GOING_ON_S)
        assert main(["status", "--controller", queue.url]) == 0
        shown = capsys.readouterr().out
        pending.cancel()
    assert re.search(r"^no progress for \d+\.\d s \(at most the 60 s that a run may stand still\)$", shown, re.MULTILINE)
    assert "whose move: stage 'source': nobody of a role that serves stage 'source' has joined" in shown
    assert re.search(rf"{consumer} +0 ready +no work yet +trainer-0#0 waits \d+\.\d s", shown)
    assert re.search(rf"trainer-0#0 +trainer +heard \d+\.\d s ago +waits: Take {consumer} for \d+\.\d s", shown)


def test_a_report_of_nothing_is_text_too() -> None:
    report = StallReport(61.0, 60.0, Blame("rollout", [], -1, "x", 1.0, "nobody"), [], [])
    told = "no progress for 61.0 s (more than the 60 s that a run may stand still)"
    assert render(report).splitlines() == [told, "whose move: nobody", "members"]
