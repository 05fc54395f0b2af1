"""Who is no member any more, and still there."""

from __future__ import annotations

from asyncflow.launch.absent import Absent


def test_only_who_was_a_member_and_stays_none_for_the_whole_grace_is_named() -> None:
    absent = Absent(grace_s=5.0)
    assert absent.look(["a", "b"], set(), 0.0) == [], "nobody has joined yet"
    assert absent.look(["a", "b"], {"a"}, 100.0) == []
    assert absent.look(["a", "b"], set(), 101.0) == []
    assert absent.look(["a", "b"], set(), 105.9) == []
    assert absent.look(["a", "b"], set(), 106.0) == ["a"]


def test_who_comes_back_in_time_is_left_alone_and_has_the_whole_grace_again() -> None:
    absent = Absent(grace_s=5.0)
    absent.look(["a"], {"a"}, 0.0)
    absent.look(["a"], set(), 1.0)
    assert absent.look(["a"], {"a"}, 5.0) == []
    assert absent.look(["a"], set(), 6.5) == []
    assert absent.look(["a"], set(), 11.5) == ["a"]


def test_a_successor_that_has_not_joined_yet_is_not_its_predecessor() -> None:
    absent = Absent(grace_s=5.0)
    absent.look(["a"], {"a"}, 0.0)
    absent.look(["a"], set(), 1.0)
    absent.forget("a")
    assert absent.look(["a"], set(), 20.0) == []
    assert absent.look([], set(), 21.0) == []
