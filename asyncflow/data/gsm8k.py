"""GSM8K's published files as parquet in verl's columns: `python -m asyncflow.data.gsm8k --train FILE --test FILE --out FOLDER`.

A published file is JSON lines or parquet with the columns `question` and `answer`; what follows "####" in an answer is the number that is right.
Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncflow.data.parquet import EXTRA, RULE_STYLE, DataError
from asyncflow.rewards.answers import HASHES, cleaned

INSTRUCTION = f'Think step by step, and write the final answer, a number, behind "{HASHES}".'
SOURCE, ABILITY = "openai/gsm8k", "math"


def record(file: str, number: int, published: dict[str, Any], split: str, instruction: str) -> dict[str, Any]:
    """One row in verl's columns. Raises DataError."""
    question, answer = published.get("question"), published.get("answer")
    for column, value in (("question", question), ("answer", answer)):
        if not isinstance(value, str) or not value.strip():
            rule = "it must be a text that is not empty"
            raise DataError(f"{file}, row {number}, {column} = {value!r}: {rule}; no file was written. Fix: mend the row")
    assert isinstance(answer, str)
    _, marked, truth = answer.rpartition(HASHES)
    if not marked or not truth.strip():
        rule = f"the right answer stands behind {HASHES!r}, and there is none"
        raise DataError(f"{file}, row {number}, answer = {answer[-80:]!r}: {rule}; no file was written. Fix: mend the row")
    return {
        "data_source": SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {instruction}"}],
        "ability": ABILITY,
        "reward_model": {"style": RULE_STYLE, "ground_truth": cleaned(truth)},
        "extra_info": {"split": split, "index": number, "question": question, "answer": answer},
    }


def convert(file: Path, out: Path, split: str, instruction: str = INSTRUCTION) -> int:
    """Write `out`/`split`.parquet, whole or not at all. Returns its rows."""
    import pyarrow
    from pyarrow import parquet

    records = [record(str(file), number, published, split, instruction) for number, published in enumerate(_published(file))]
    if not records:
        raise DataError(f"{file}: it holds no row; no file was written. Fix: name another file")
    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / f".{split}.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(records), unfinished)
    unfinished.replace(out / f"{split}.parquet")
    return len(records)


def _published(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise DataError(f"{file}: there is no such file; no file was written. Fix: name GSM8K's train or test file (JSON lines or parquet)")
    if file.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
        return rows
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{file}, row {number}: it is no JSON ({error}); no file was written. Fix: mend the line") from None
        if not isinstance(row, dict):
            raise DataError(f"{file}, row {number}: it is no JSON object; no file was written. Fix: mend the line")
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m asyncflow.data.gsm8k", description="GSM8K as parquet in verl's columns.")
    parser.add_argument("--train", type=Path, required=True, metavar="FILE", help="published training questions: JSON lines or parquet")
    parser.add_argument("--test", type=Path, required=True, metavar="FILE", help="published test questions")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="gets train.parquet and test.parquet")
    parser.add_argument("--instruction", default=INSTRUCTION, metavar="TEXT", help="stands behind each question; default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        for split in ("train", "test"):
            rows = convert(getattr(given, split), given.out, split, given.instruction)
            print(f"{given.out / f'{split}.parquet'}: {rows} questions")
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"{error}: it is needed to write parquet. Fix: {EXTRA}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
