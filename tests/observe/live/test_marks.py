"""Strokes that stand for numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.observe.live.marks import ASCII, UNICODE, duration, marks_for, share_bar, sparkline

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


@settings(deadline=None, max_examples=50)
@given(values=NUMBERS, width=st.integers(1, 50))
def test_a_sparkline_fits_and_shows_highest_and_lowest(values: list[float], width: int) -> None:
    line = sparkline(values, width, UNICODE)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(UNICODE.levels)
    if len(values) <= width and max(values) - min(values) > 1e-6:
        assert line[values.index(max(values))] == UNICODE.levels[-1]
        assert line[values.index(min(values))] == UNICODE.levels[0]


def test_a_sparkline_of_nothing_is_empty_and_of_equal_values_is_level() -> None:
    assert sparkline([], 10, UNICODE) == ""
    assert len(set(sparkline([0.0, 0.0, 0.0], 10, UNICODE))) == 1


@settings(deadline=None, max_examples=50)
@given(busy=st.floats(0, 1), paused=st.floats(0, 1), width=st.integers(1, 60))
def test_a_bar_of_shares_always_fills_its_width(busy: float, paused: float, width: int) -> None:
    total = busy + paused + 0.5
    shares = {"busy": busy / total, "paused": paused / total, "wait": 0.5 / total}
    assert len(share_bar(shares, width, ASCII).plain) == width


def test_a_bar_can_be_read_without_colour() -> None:
    assert share_bar({"busy": 0.5, "paused": 0.25, "wait": 0.25}, 8, UNICODE).plain == "████▒▒··"
    assert share_bar({"busy": 0.5, "paused": 0.25, "wait": 0.25}, 8, ASCII).plain == "####==.."


def test_a_terminal_without_utf8_gets_ascii() -> None:
    assert (marks_for("utf-8"), marks_for("UTF8"), marks_for("ascii"), marks_for("iso-8859-1")) == (UNICODE, UNICODE, ASCII, ASCII)


@pytest.mark.parametrize(("seconds", "said"), [(None, "?"), (0.0, "0 s"), (59.4, "59 s"), (187, "3:07"), (7500, "2:05:00"), (273_600, "3 d 4 h")])
def test_a_duration_is_said_as_people_say_it(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said
