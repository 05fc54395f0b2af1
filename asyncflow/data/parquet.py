"""Rows of a parquet file in verl's columns: `data_source`, `prompt` (chat messages), `ability`, `reward_model` {style, ground_truth}, `extra_info`.

Read are `prompt` and `reward_model`, and `data_source` where it is there; what else a file holds is left alone.
"""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

PROMPT, REWARD, SOURCE = "prompt", "reward_model", "data_source"
NEEDED = (PROMPT, REWARD)
RULE_STYLE = "rule"
EXTRA = "pip install 'asyncflow[math]'"
MOST_SHOWN = 80  # characters of a value in a message

Message = dict[str, str]  # role and content


class DataError(ValueError):
    """What is wrong with a file, said so that it can be put right: file, row, column, value, rule, consequence, fix."""


class Row(NamedTuple):
    """One question. `number`: its row in the file, from 0."""

    file: str
    number: int
    messages: list[Message]
    truths: list[str]  # any of them is a right answer
    source: str

    @property
    def question(self) -> str:
        """What is asked, instructions included: by it questions are told apart."""
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.messages)

    def error(self, column: str, value: Any, rule: str, fix: str) -> DataError:
        return _error(self.file, self.number, column, value, rule, fix)


def read_rows(path: str | Path, setting: str = "task.options.train") -> list[Row]:
    """All rows of a file, which `setting` names. Raises DataError for the first thing that cannot be used."""
    file = str(path)
    rows = [_row(file, number, record) for number, record in enumerate(_records(Path(path), setting))]
    if not rows:
        raise DataError(f"{file}: it holds no row, and at least one is needed; there would be nothing to ask. Fix: name another file")
    return rows


def _records(path: Path, setting: str) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise RuntimeError(f"{path} cannot be read without pyarrow, which is not installed; nothing was read. Fix: {EXTRA}") from error
    if not path.is_file():
        fix = f"{setting}=FILE, or make it: python -m asyncflow.data.gsm8k --help"
        raise DataError(f"{path}: there is no such file (from {Path.cwd()}); there would be nothing to ask. Fix: {fix}")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            lost = [name for name in NEEDED if name not in names]
            if lost:
                rule = f"the columns {', '.join(NEEDED)} are needed, and {', '.join(lost)} is missing; there are {', '.join(names)}"
                raise DataError(f"{path}: {rule}; nothing was read. Fix: write it in verl's columns (python -m asyncflow.data.gsm8k --help)")
            records: list[dict[str, Any]] = file.read(columns=[name for name in (*NEEDED, SOURCE) if name in names]).to_pylist()
            return records
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # damaged, of a kind that pyarrow lacks, or a text that is none
        raise DataError(f"{path}: it cannot be read as parquet ({error}); nothing was read. Fix: write it again") from error


def _row(file: str, number: int, record: dict[str, Any]) -> Row:
    messages, reward = record[PROMPT], record[REWARD]
    if not isinstance(messages, list) or not messages:
        rule = "it must be a list of messages {role, content}, with one at least"
        raise _error(file, number, PROMPT, messages, rule, "write chat messages, not a text")
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) and message[key] for key in ("role", "content")):
            rule = "each message must have role and content, both texts that are not empty (pictures and tools are not there yet)"
            raise _error(file, number, f"{PROMPT}[{place}]", message, rule, "put that right, or leave the row out")
    chat = [{key: message[key] for key in ("role", "content")} for message in messages]
    return Row(file, number, chat, _truths(file, number, reward), str(record.get(SOURCE) or ""))


def _truths(file: str, number: int, reward: Any) -> list[str]:
    if not isinstance(reward, dict) or "ground_truth" not in reward:
        raise _error(file, number, REWARD, reward, "it must hold style and ground_truth", "write both")
    style, truth = reward.get("style", RULE_STYLE), reward["ground_truth"]
    if style != RULE_STYLE:
        rule = f"only answers that a rule can compare are scored here, so it must be {RULE_STYLE!r}"
        raise _error(file, number, f"{REWARD}.style", style, rule, "leave such rows out, or use a task of your own (docs/recipes.md)")
    truths = truth if isinstance(truth, list) else [truth]
    texts = [_as_text(each) for each in truths]
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        rule = "it must be the right answer as a finite number or a text that is not empty, or a list of such"
        raise _error(file, number, f"{REWARD}.ground_truth", truth, rule, "write the answer, or leave the row out")
    return [text.strip() for text in texts]


def _as_text(truth: Any) -> Any:
    """A number as people write it, without an exponent; NaN, which a missing value becomes on its way through pandas, and all else as it is."""
    if isinstance(truth, bool) or not isinstance(truth, int | float) or not math.isfinite(truth):
        return truth
    return format(Decimal(repr(truth)), "f")


def _error(file: str, number: int, column: str, value: Any, rule: str, fix: str) -> DataError:
    said = repr(value)
    shown = said if len(said) <= MOST_SHOWN else f"{said[:MOST_SHOWN]}…"
    return DataError(f"{file}, row {number}, {column} = {shown}: {rule}; no row of the file is used. Fix: {fix}")
