"""A soak that cannot fail would say nothing: each fault that it is there for is found in books that have it, and none in books that have not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.soak import content, oracle, records
from tests.soak.content import ROWS, Key
from tests.soak.evidence import Evidence, Group, gather
from tests.soak.flat import Sample, growths
from tests.soak.settings import ASKED, PUT

Spoil = Callable[[Evidence], object]


def put_books() -> Evidence:
    """6 groups that a writer put; two steps trained 2 each, one was lost with a shard and one was never acknowledged nor stored."""
    groups: list[Group] = [(0, 0, serial) for serial in range(6)]
    found = Evidence(tried=set(groups), acknowledged=[(gid, group, 10.0) for gid, group in enumerate(groups[:5])])
    found.batches = {step: rows_of([(gid, groups[gid]) for gid in (2 * step, 2 * step + 1)]) for step in range(2)}
    found.graded = {(gid, row): [11.0] for gid in range(4) for row in range(ROWS)}
    found.ledger, found.version, found.target, found.losses = {"trained": 4, "dropped:shard_lost": 1, "complete": 0}, 2, 4, [12.0]
    return found


def asked_books() -> Evidence:
    """4 groups of prompts, of which one was dropped as stale."""
    found = Evidence(prompted=set(range(5)), pulled=set(range(4)))
    found.batches = {0: rows_of([(gid, (-1, 0, gid)) for gid in range(3)])}
    found.graded = {(gid, row): [1.0] for gid in range(3) for row in range(ROWS)}
    found.ledger, found.version, found.target = {"trained": 3, "dropped:stale": 1}, 1, 3
    return found


def rows_of(groups: list[tuple[int, Group]]) -> list[tuple[int, int, Key]]:
    return [(gid, row, (*group, row)) for gid, group in groups for row in range(ROWS)]


def test_books_that_balance_are_left_alone() -> None:
    assert oracle.judge(PUT, put_books()) == []
    assert oracle.judge(ASKED, asked_books()) == []


def test_what_was_on_its_way_may_be_there_or_not() -> None:
    books = put_books()
    books.acknowledged.pop(1)
    assert oracle.judge(PUT, books) == [], "trained, though its writer died before it knew"


def test_a_row_is_graded_again_when_a_shard_took_its_score_whichever_grader_is_read_first() -> None:
    books = put_books()
    books.graded[0, 0] = [13.0, 11.9]
    assert oracle.judge(PUT, books) == []


def twice_under_another_number(books: Evidence) -> None:
    books.batches[1] = rows_of([(2, (0, 0, 2)), (7, (0, 0, 0))])
    books.acknowledged.pop(3)
    books.graded |= {(7, row): [11.0] for row in range(ROWS)}


SPOILT: list[tuple[str, Spoil]] = [
    ("missing", lambda books: books.ledger.update({"dropped:shard_lost": 0})),
    ("missing", lambda books: books.ledger.update({"dropped:shard_lost": 3})),
    ("trained twice", lambda books: books.batches.update({1: books.batches[0]})),
    ("under other numbers", twice_under_another_number),
    ("in part", lambda books: books.batches[0].pop()),
    ("another one's place", lambda books: books.batches[0].__setitem__(0, (0, 1, (0, 0, 0, 0)))),
    ("nobody put them", lambda books: books.tried.discard((0, 0, 1))),
    ("under another number", lambda books: books.acknowledged.__setitem__(0, (0, (0, 0, 5), 10.0))),
    ("left open", lambda books: books.ledger.update({"leased": 1})),
    ("reasons that nobody", lambda books: books.ledger.update({"dropped:whim": 1})),
    ("were to be trained", lambda books: setattr(books, "target", 5)),
    ("the ledger says", lambda books: books.ledger.update({"trained": 5})),
    ("no trainer began", lambda books: books.batches.pop(0)),
    ("graded by nobody", lambda books: books.graded.pop((0, 0))),
    ("graded twice", lambda books: books.graded.update({(0, 0): [30.0, 40.0]})),
    ("one put twice", lambda books: books.acknowledged.append((9, (0, 0, 0), 10.0))),
    ("had long been lost", lambda books: books.acknowledged.__setitem__(4, (4, (0, 0, 4), 99.0))),
]


@pytest.mark.parametrize(("problem", "spoil"), SPOILT)
def test_books_that_are_wrong_are_found_wrong(problem: str, spoil: Spoil) -> None:
    books = put_books()
    spoil(books)
    assert problem in " ".join(oracle.judge(PUT, books))


def test_a_group_of_prompts_that_is_lost_or_made_up_is_found() -> None:
    books = asked_books()
    books.ledger["dropped:stale"] = 0
    assert "missing" in " ".join(oracle.judge(ASKED, books))
    books = asked_books()
    books.batches[0] = rows_of([(0, (-1, 0, 0)), (1, (-1, 0, 1)), (2, (-1, 0, 3))])
    assert "another group's" in " ".join(oracle.judge(ASKED, books))
    books = asked_books()
    books.prompted, books.pulled = {0, 1}, {0, 1}
    assert "nobody asked for them" in " ".join(oracle.judge(ASKED, books))


def test_a_row_may_be_graded_again_where_a_shard_took_the_score() -> None:
    books = put_books()
    books.graded[0, 0] = [10.0, 13.0]
    assert oracle.judge(PUT, books) == []


def test_one_byte_that_is_another_is_found_in_whatever_column() -> None:
    keys: list[Key] = [(0, 3, 5, 0), (0, 3, 5, 1)]
    read = content.columns(keys) | {"prompt": [content.prompt(key) for key in keys], "score": np.array([content.score(key) for key in keys])}
    assert content.differences(read) == []
    blob = read["blob"][1]
    others = {
        "tokens": [read["tokens"][1], read["tokens"][0]],
        "blob": [read["blob"][0], bytes([blob[0] ^ 1]) + blob[1:]],
        "note": ["", read["note"][1]],
        "prompt": [read["prompt"][0], read["prompt"][1][:-1]],
        "score": read["score"][::-1],
        "key": read["key"][::-1],
    }
    for name, values in others.items():
        assert content.differences(read | {name: values}), name
    assert "nobody puts" in content.differences(read | {"key": read["key"] - 9})[0]


def test_records_are_read_back_but_for_a_line_that_a_kill_cut_off(tmp_path: Path) -> None:
    for life in (0, 1):
        note = records.Recorder(tmp_path, "writer-1", life)
        note(records.Tried(serial=0, groups=2))
        note(records.Acknowledged(serial=0, gids=[4, 5]))
    with (tmp_path / "writer-1.00000").open("ab") as file:
        file.write(b'{"type":"Tried","seri')
    found, _ = gather(tmp_path)
    assert [(gid, group) for gid, group, _ in found[PUT].acknowledged] == [(gid, (1, life, gid - 4)) for life in (0, 1) for gid in (4, 5)]
    assert found[PUT].tried == {(1, life, serial) for life in (0, 1) for serial in (0, 1)}


def samples(memory: Callable[[int], int], descriptors: Callable[[int], int]) -> list[Sample]:
    return [Sample(float(t), "shard", "shard-0.0", 20.0 + t, memory(t), descriptors(t)) for t in range(0, 120, 2)]


def test_what_grows_is_told_from_what_goes_up_and_down() -> None:
    base = 50 << 20

    def problems(memory: Callable[[int], int], descriptors: Callable[[int], int] = lambda t: 20) -> list[str]:
        found = growths(samples(memory, descriptors), 0.0, 120.0)
        assert [growth.of for growth in found] == ["all of kind shard", "shard-0.0"]
        return [problem for growth in found for problem in growth.problems()]

    assert problems(lambda t: base + (t % 20) * (1 << 20)) == []
    assert problems(lambda t: base + min(t, 30) * (1 << 20)) == [], "the first third fills caches"
    assert len(problems(lambda t: base + t * (1 << 20))) == 2
    assert len(problems(lambda t: base, lambda t: 20 + t // 2)) == 2
    assert growths(samples(lambda t: base, lambda t: 20)[:6], 0.0, 120.0) == [], "too few to tell"
