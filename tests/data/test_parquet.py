"""Parquet in verl's columns: what is read, and what is refused with file, row, column, rule and fix."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from asyncflow.data.parquet import DataError, read_rows
from tests.data.math_files import row, sums, write_rows


def test_rows_are_read_in_order_with_their_messages_and_truths(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "1+1?"}]
    path = write_rows(tmp_path / "a.parquet", [row("1+1?", "2"), row("", "2", prompt=messages)])
    first, second = read_rows(path)
    assert (first.number, first.messages, first.truths, first.source) == (0, [{"role": "user", "content": "1+1?"}], ["2"], "test")
    assert (second.messages, second.question) == (messages, "system: be brief\nuser: 1+1?")


def test_a_truth_may_be_a_list_or_a_number(tmp_path: Path) -> None:
    assert read_rows(write_rows(tmp_path / "list.parquet", [row("a", ["1", " 2 "])]))[0].truths == ["1", "2"]
    assert read_rows(write_rows(tmp_path / "number.parquet", [row("a", 72)]))[0].truths == ["72"]
    numbers = [row("a", 0.5), row("b", 1e-7), row("c", 1e20)]  # as Python writes the last two, they would be read as products with e
    assert [found.truths for found in read_rows(write_rows(tmp_path / "floats.parquet", numbers))] == [["0.5"], ["0.0000001"], ["1" + "0" * 20]]


def test_columns_that_nobody_needs_may_be_missing_or_more(tmp_path: Path) -> None:
    lean = {name: value for name, value in row("a", "1").items() if name in ("prompt", "reward_model")}
    assert read_rows(write_rows(tmp_path / "lean.parquet", [lean]))[0].source == ""
    assert read_rows(write_rows(tmp_path / "rich.parquet", [row("a", "1", more=[1, 2])]))[0].truths == ["1"]


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, r"row 1, prompt = \[\]: it must be a list of messages"),
    ({"prompt": [{"role": "user", "content": ""}]}, r"row 1, prompt\[0\] = .*role and content"),
    ({"prompt": None}, r"row 1, prompt = None"),
    ({"reward_model": {"style": "rule", "ground_truth": " "}}, r"row 1, reward_model\.ground_truth = ' ': it must be the right answer"),
    ({"reward_model": {"style": "rule", "ground_truth": None}}, r"row 1, reward_model\.ground_truth = None"),
    ({"reward_model": {"style": "model", "ground_truth": "1"}}, r"row 1, reward_model\.style = 'model'.*must be 'rule'"),
    ({"reward_model": None}, r"row 1, reward_model = None: it must hold style and ground_truth"),
]


@pytest.mark.parametrize(("broken", "words"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_row_that_cannot_be_used_is_named_with_rule_and_fix(tmp_path: Path, broken: dict[str, Any], words: str) -> None:
    path = write_rows(tmp_path / "a.parquet", [row("fine", "1"), row("broken", "1") | broken])
    with pytest.raises(DataError, match=words) as error:
        read_rows(path)
    assert str(error.value).startswith(str(path))
    assert "; no row of the file is used. Fix: " in str(error.value)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_is_none_is_no_truth(tmp_path: Path, number: float) -> None:
    with pytest.raises(DataError, match=rf"row 1, reward_model\.ground_truth = {number}: it must be the right answer as a finite number"):
        read_rows(write_rows(tmp_path / "a.parquet", [row("fine", 1.0), row("broken", number)]))


def test_a_text_that_is_no_utf8_names_its_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [row("zzzzzzzz", "1")])
    parquet.write_table(parquet.read_table(path), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"zzzzzzzz", b"\xff\xfezzzzzz"))
    with pytest.raises(DataError, match=r"a\.parquet: it cannot be read as parquet \('utf-8' codec.*Fix: write it again"):
        read_rows(path)


def test_a_prompt_that_is_a_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 0, prompt = '1\+1\?'.*Fix: write chat messages, not a text"):
        read_rows(write_rows(tmp_path / "a.parquet", [row("", "2", prompt="1+1?")]))


def test_a_file_without_the_columns_names_those_that_it_has(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [{"question": "1+1?", "answer": "2", "prompt": "x"}])
    with pytest.raises(DataError, match=r"reward_model is missing; there are question, answer, prompt.*asyncflow\.data\.gsm8k"):
        read_rows(path)


def test_a_file_that_is_not_there_is_no_parquet_or_is_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.parquet: there is no such file.*Fix: task\.options\.train=FILE"):
        read_rows(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("question,answer\n")
    with pytest.raises(DataError, match=r"text\.parquet: it cannot be read as parquet"):
        read_rows(tmp_path / "text.parquet")
    path = write_rows(tmp_path / "cut.parquet", sums(30))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut\.parquet: it cannot be read as parquet"):
        read_rows(path)
