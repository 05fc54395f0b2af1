"""Questions out of parquet files, as the model reads them: those that are trained, those that are evaluated, and what became of the other rows."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from asyncflow.data.chat import ChatRefused
from asyncflow.data.parquet import DataError, Message, Row, read_rows
from asyncflow.data.task import Example

log = logging.getLogger(__name__)

SALT = "held out"
Encode = Callable[[Sequence[list[Message]]], list[list[int]]]  # raises ChatRefused


class MathItem(msgspec.Struct, frozen=True):
    """What travels to the scorer in the column `item`."""

    truths: list[str]


class Questions(NamedTuple):
    """Rows that are asked, each with its token ids."""

    rows: list[Row]
    prompt_ids: list[list[int]]

    def example(self, index: int) -> Example:
        row = self.rows[index]
        return Example(row.question, self.prompt_ids[index], msgspec.json.encode(MathItem(row.truths)), answer_ids=[])


class QuestionFiles:
    """Files are read when they are needed first, and once."""

    def __init__(
        self, train: Sequence[str], held_out: Sequence[str], held_out_share: float, prompt_width: int, item_bytes: int, encode: Encode
    ) -> None:
        """`held_out_share`: without files of held-out questions, that share of the training questions. `encode`: chats to token ids."""
        if not 0 <= held_out_share < 1 or (held_out_share and held_out):
            rule = "it must be at least 0 and below 1, and 0 where task.options.held_out names files"
            raise ValueError(f"task.options.held_out_share = {held_out_share}: {rule}; nothing was read. Fix: task.options.held_out_share=0")
        if not train:
            raise ValueError("task.options.train = []: it must name a file at least; there would be nothing to ask. Fix: task.options.train=FILE")
        self._train, self._held_out, self._share = train, held_out, held_out_share
        self._prompt_width, self._item_bytes, self._encode = prompt_width, item_bytes, encode

    @property
    def training(self) -> Questions:
        return self._read_training[0]

    @property
    def counts(self) -> dict[str, int]:
        """Rows of the training files, and what became of them: `kept` are asked, `too_long` have a prompt above rollout.prompt_width, `held_out` are
        questions that are evaluated. `held_out_repeats`: rows of evaluated questions that are left out, because the same is asked before."""
        return self._read_training[1] | {"held_out_repeats": self._held_out_once[1]}

    @functools.cached_property
    def evaluated(self) -> Questions:
        """Different questions, each once. A held-out prompt that is too long is an error: leaving it out would change what an accuracy is of."""
        rows, _ = self._held_out_once
        tokens = self._tokens(rows)
        for row, ids in zip(rows, tokens, strict=True):
            if len(ids) > self._prompt_width:
                rule = f"it has {len(ids)} tokens where rollout.prompt_width = {self._prompt_width}, and a held-out question is never left out"
                raise row.error("prompt", row.question, rule, f"rollout.prompt_width={max(map(len, tokens))}, or remove the row")
        return Questions(rows, tokens)

    def refuse_fewer(self, count: int) -> None:
        """Raises DataError where there are fewer held-out questions: nothing is left out of an evaluation, and nothing counts twice."""
        found = len(self.evaluated.rows)
        if found < count:
            where = ", ".join(self._held_out) or f"task.options.held_out_share = {self._share} of {', '.join(self._train)}"
            fix = f"evaluation.items={found}" if found else "task.options.held_out=FILE"
            repeats = self._held_out_once[1]
            twice = f" ({repeats} rows more ask one of them again)" if repeats else ""
            rule = f"{where} has {found} questions{twice}; an evaluation of so many cannot be made"
            raise DataError(f"evaluation.items = {count}: {rule}. Fix: {fix}")

    @functools.cached_property
    def _held_out_once(self) -> tuple[list[Row], int]:
        """Rows of different questions, the first of each, and how many others there were."""
        rows = _read(self._held_out, "held_out") if self._held_out else [row for row in _read(self._train, "train") if self._is_held_out(row)]
        once: dict[str, Row] = {}
        for row in rows:
            once.setdefault(row.question, row)
        repeats = len(rows) - len(once)
        if repeats:
            other = sum(set(row.truths) != set(once[row.question].truths) for row in rows)
            differ = f", {other} of them with another right answer than the first, which alone counts" if other else ""
            files = ", ".join(self._held_out or self._train)
            log.warning("%s: %d rows ask a held-out question that is asked before and are left out%s", files, repeats, differ)
        return list(once.values()), repeats

    @functools.cached_property
    def _read_training(self) -> tuple[Questions, dict[str, int]]:
        rows = _read(self._train, "train")
        evaluated = {row.question for row in self._held_out_once[0]} if self._held_out else set()
        asked = [row for row in rows if row.question not in evaluated and not self._is_held_out(row)]
        fitting = [(row, ids) for row, ids in zip(asked, self._tokens(asked), strict=True) if len(ids) <= self._prompt_width]
        counts = {"rows": len(rows), "kept": len(fitting), "too_long": len(asked) - len(fitting), "held_out": len(rows) - len(asked)}
        files = ", ".join(self._train)
        if not fitting:
            fix = "a larger rollout.prompt_width" if asked else "other files in task.options.held_out, or a smaller task.options.held_out_share"
            raise DataError(f"{files}: no row is left to train on ({counts}); there would be nothing to ask. Fix: {fix}")
        if counts["too_long"] or counts["held_out"]:
            log.warning("%s: %s; too_long: prompts above rollout.prompt_width = %d tokens", files, counts, self._prompt_width)
        return Questions([row for row, _ in fitting], [ids for _, ids in fitting]), counts

    def _tokens(self, rows: Sequence[Row]) -> list[list[int]]:
        for row in rows:
            size = len(msgspec.json.encode(MathItem(row.truths)))
            if size > self._item_bytes:
                rule = f"it takes {size} bytes where task.item_bytes = {self._item_bytes}"
                raise row.error("reward_model.ground_truth", row.truths, rule, f"task.item_bytes={size}")
        try:
            return self._encode([row.messages for row in rows]) if rows else []
        except ChatRefused as refused:
            row, rule = rows[refused.place], f"the model's chat template must take it ({refused})"
            raise row.error("prompt", row.messages, rule, "write it as the template wants it, or leave the row out") from refused

    def _is_held_out(self, row: Row) -> bool:
        return xxhash.xxh3_64_intdigest(f"{SALT}/{row.question}".encode()) < self._share * (1 << 64)


def _read(files: Sequence[str], option: str) -> list[Row]:
    return [row for file in files for row in read_rows(file, f"task.options.{option}")]
