"""GSM8K's published files in verl's columns."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from asyncflow.data.gsm8k import INSTRUCTION, main
from asyncflow.data.parquet import read_rows

PUBLISHED = [
    {"question": "Anna has 40 pens and sells half. How many are left?", "answer": "She sells 40/2=<<40/2=20>>20.\n#### 20"},
    {"question": "What is a thousand and 234?", "answer": "It is 1,234.\n#### 1,234"},
    {"question": "What is 3 less 10?", "answer": "3-10=-7\n#### -7"},
]


def lines(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_and_parquet_become_rows_that_the_task_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, test = lines(tmp_path / "train.jsonl", PUBLISHED), tmp_path / "test-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(PUBLISHED[:1]), test)
    out = tmp_path / "data" / "gsm8k"
    assert main(["--train", str(train), "--test", str(test), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{out}/train.parquet: 3 questions", f"{out}/test.parquet: 1 questions"]
    rows = read_rows(out / "train.parquet")
    assert [row.truths for row in rows] == [["20"], ["1234"], ["-7"]]
    assert rows[0].messages == [{"role": "user", "content": f"{PUBLISHED[0]['question']} {INSTRUCTION}"}]
    assert parquet.read_table(out / "train.parquet").column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    whole = parquet.read_table(out / "test.parquet").to_pylist()[0]
    assert whole["extra_info"] == {"split": "test", "index": 0, "question": PUBLISHED[0]["question"], "answer": PUBLISHED[0]["answer"]}
    assert (whole["data_source"], whole["ability"], whole["reward_model"]) == ("openai/gsm8k", "math", {"style": "rule", "ground_truth": "20"})
    assert sorted(path.name for path in out.iterdir()) == ["test.parquet", "train.parquet"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"question": "a", "answer": "no mark"}, r"row 3, answer = 'no mark': the right answer stands behind '####'"),
        ({"question": "", "answer": "#### 1"}, "row 3, question = '': it must be a text"),
        ({"answer": "#### 1"}, "row 3, question = None"),
    ],
)
def test_a_row_that_is_not_gsm8ks_is_named_and_no_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: dict[str, str], words: str
) -> None:
    file = lines(tmp_path / "train.jsonl", [*PUBLISHED, broken])
    assert main(["--train", str(file), "--test", str(file), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words.replace("\\", "") in said
    assert "Fix: " in said
    assert not (tmp_path / "out").exists()


def test_what_is_no_json_or_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "a", "answer": "#### 1"}\nnonsense\n')
    for name, words in (("a.jsonl", "row 1: it is no JSON"), ("b.jsonl", "there is no such file")):
        assert main(["--train", str(tmp_path / name), "--test", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
        assert words in capsys.readouterr().err
