"""What members say and everybody is shown: it is short, and steers nobody's terminal."""

from __future__ import annotations

from typing import Any

import pytest
from controller_desk import Desk, plain

from transfer_queue import messages as m
from transfer_queue.__main__ import _as_text
from transfer_queue.controller import dropping
from transfer_queue.operation.report import QueueReport

LONG = "x" * 300


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a\x1b[2J"},
        {"name": "a\x00"},
        {"role": LONG},
        {"role": "a\nstate stop"},
        {"host": LONG},
        {"endpoints": {LONG: "tcp://127.0.0.1:1"}},
        {"endpoints": {"publisher:m": LONG}},
    ],
)
def test_a_member_with_words_that_nobody_could_read_does_not_join(fields: dict[str, Any]) -> None:
    desk = Desk(plain())
    request = m.Register(**({"name": "a", "role": "rollout", "pid": 1, "host": "h", "endpoints": {}} | fields))
    message = desk.refuse(b"x", request)
    assert message.isprintable()
    assert desk.core.status().members == {}


@pytest.mark.parametrize(
    "fields", [{"busy": {str(at): 1.0 for at in range(65)}}, {"loaded": {LONG: -1}}, {"endpoints": {"a": LONG}}, {"epochs": {"a\n": 1}}]
)
def test_a_heartbeat_says_little(fields: dict[str, Any]) -> None:
    desk = Desk(plain())
    who = desk.join("rollout-0")
    desk.refuse(who.connection, m.Watch(wait_s=0.0, **fields, **who.fields))
    member = desk.core.members[0]
    assert (member.busy, member.loaded, member.epochs, member.endpoints) == ({}, {}, {}, {})


def test_reasons_of_drops_are_words_and_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(plain(batch=8, staleness=1))
    who = desk.join("rollout-0")
    desk.prompts(8)
    leases = desk.pull(who, limit=8)
    monkeypatch.setattr(dropping, "MOST_STATES", 7)

    def drop(at: int, reason: str) -> m.DropGroups:
        return m.DropGroups(topic="t", gids=[leases[at].gid], reason=reason, **who.fields)

    desk.refuse(who.connection, drop(0, LONG))
    desk.refuse(who.connection, drop(0, "a\nb"))
    for at, reason in enumerate(["too_long", "odd", "too_long"]):
        desk.ask(who.connection, drop(at, reason), m.OkEmpty)
    assert "would be one more than the 7 states" in desk.refuse(who.connection, drop(3, "another"))
    desk.ask(who.connection, drop(3, "odd"), m.OkEmpty)
    counts = desk.core.status().topics[0].ledger
    assert (counts["dropped:too_long"], counts["dropped:odd"]) == (2, 2)


def test_no_name_makes_a_line_of_its_own_in_the_status() -> None:
    partition = m.PartitionStatus("a\nstate stop\x1b[2J", 1, 1, 1, {"t\r\ntopic x": 1})
    text = _as_text(QueueReport(m.StatusRecord("run", "one\ntwo", {}, [], 0.0, partitions=[partition]), [], None, 0.0))
    assert len(text.splitlines()) == 5
    assert "\x1b" not in text
