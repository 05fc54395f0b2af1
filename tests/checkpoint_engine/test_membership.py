"""Who may be in the broadcast group: pure state, time comes in."""

from __future__ import annotations

from checkpoint_engine.membership import FORGET_S, SILENT_S, Members


def test_only_members_that_speak_and_can_are_invited() -> None:
    members = Members()
    members.heard("a", b"1", collective=True, have=None, now=0.0)
    members.heard("pulls", b"2", collective=False, have=None, now=0.0)
    assert members.eligible(0.0) == {"a"}
    assert members.eligible(SILENT_S + 0.1) == frozenset()
    members.alive("a", 5.0)
    assert members.eligible(5.0) == {"a"}


def test_one_slow_answer_excludes_until_the_next_sign_of_life_and_no_longer() -> None:
    members = Members()
    members.heard("a", b"1", collective=True, have=None, now=0.0)
    members.suspect("a")
    assert members.eligible(0.1) == frozenset()
    assert "a" in members
    members.heard("a", b"1", collective=True, have=None, now=1.0)
    assert members.eligible(1.0) == {"a"}


def test_the_silent_are_forgotten_in_the_end() -> None:
    members = Members()
    members.heard("a", b"1", collective=True, have=None, now=0.0)
    assert members.silent(FORGET_S - 1) == []
    assert members.silent(FORGET_S + 1) == ["a"]
