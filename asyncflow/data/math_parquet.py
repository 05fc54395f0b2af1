"""A task of mathematical questions in parquet files: verl's columns, the model's own chat template, answers compared by math-verify."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import xxhash

from asyncflow.data.chat import load_tokenizer, prompt_ids, stops_of
from asyncflow.data.order import EndlessOrder
from asyncflow.data.parquet import DataError, Row, read_rows
from asyncflow.data.task import Example
from asyncflow.rewards.answers import FORMS, Form
from asyncflow.rewards.math_judge import MathJudge
from asyncflow.rewards.verdict import Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)

FIXED_SEED = 0  # of the held-out questions: the same for every run
SALT = "held out"
Files = str | Sequence[str]


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


class MathParquet:
    """Implements what a run needs of `asyncflow.data.task.Task` (no warm start: there are no demonstrations). Files are read when they are needed:
    by the source and by whoever evaluates, never by a scorer."""

    def __init__(
        self,
        *,
        seed: int,
        tokenizer: str,  # folder of the model's Hugging Face files
        train: Files,
        held_out: Files = (),  # questions of these are evaluated, and never trained
        held_out_share: float = 0.0,  # without such files: this share of the training questions, by the hash of their text
        prompt_width: int,  # longest prompt in tokens
        item_bytes: int,
        stop_token_ids: Sequence[int] = (),  # none: the model's own
        forms: Sequence[Form] = FORMS,
        compare_s: float = 5.0,  # most seconds that comparing one answer may take
        compare_bytes: int = 2 << 30,  # most memory of the process that compares
    ) -> None:
        self._seed, self._folder, self._prompt_width, self._item_bytes = seed, tokenizer, prompt_width, item_bytes
        self._train_files, self._held_out_files, self._share = _files(train), _files(held_out), held_out_share
        self._stop_token_ids = tuple(stop_token_ids)
        self._judge = MathJudge(forms, compare_s, compare_bytes)
        if not 0 <= held_out_share < 1 or (held_out_share and self._held_out_files):
            rule = "it must be at least 0 and below 1, and 0 where task.options.held_out names files"
            raise ValueError(f"task.options.held_out_share = {held_out_share}: {rule}; nothing was read. Fix: task.options.held_out_share=0")

    # ------------------------------------------------------------ prompts

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return load_tokenizer(self._folder)

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """(prompt token ids, `item` bytes): the training questions in an endless order of the run's seed."""
        example = self._training.example(self._order(gid))
        return example.prompt_ids, example.item

    def held_out(self, count: int) -> list[Example]:
        """The first `count` held-out questions, in an order that is the same for every run and mixes the file, so that a few are of all kinds.
        Raises DataError where there are fewer: nothing is left out of an evaluation, and nothing counts twice."""
        questions = self._evaluated
        if len(questions.rows) < count:
            where = ", ".join(self._held_out_files) or f"task.options.held_out_share = {self._share} of {', '.join(self._train_files)}"
            raise DataError(
                f"evaluation.items = {count}: {where} has {len(questions.rows)} questions; an evaluation of so many cannot be made. "
                f"Fix: evaluation.items={len(questions.rows)}" + ("" if questions.rows else ", or task.options.held_out=FILE")
            )
        return [questions.example(row) for row in EndlessOrder(len(questions.rows), FIXED_SEED).first(count)]

    @property
    def counts(self) -> dict[str, int]:
        """Rows of the training files, and what became of them: `kept` are asked, `too_long` have a prompt above rollout.prompt_width,
        `held_out` are questions that are evaluated."""
        return dict(self._read_training[1])

    # ------------------------------------------------------------ scores

    def verdict(self, item: bytes, response_ids: Sequence[int]) -> Verdict:
        """Of a response as it was sampled. Never raises for what is in the response. Raises ValueError for a broken item."""
        try:
            truths = msgspec.json.decode(item, type=MathItem).truths
        except msgspec.DecodeError as error:
            raise ValueError(f"item {item[:40]!r} is none of this task ({error}) and cannot be scored; source and scorer need one task") from error
        if not len(response_ids) or int(response_ids[-1]) not in self._stops:
            return Verdict.UNFINISHED
        return self._judge(truths, str(self.tokenizer.decode([int(token) for token in response_ids[:-1]], skip_special_tokens=True)))

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        return float(self.verdict(item, response_ids) is Verdict.RIGHT)

    def close(self) -> None:
        """End the process that compares answers."""
        self._judge.close()

    @functools.cached_property
    def _stops(self) -> frozenset[int]:
        return frozenset(self._stop_token_ids or stops_of(self._folder, self.tokenizer))

    # ------------------------------------------------------------ files

    @property
    def _training(self) -> Questions:
        return self._read_training[0]

    @functools.cached_property
    def _order(self) -> EndlessOrder:
        return EndlessOrder(len(self._training.rows), self._seed)

    @functools.cached_property
    def _read_training(self) -> tuple[Questions, dict[str, int]]:
        rows = _read(self._train_files)
        evaluated = {row.question for row in _read(self._held_out_files)}
        asked = [row for row in rows if row.question not in evaluated and not self._is_held_out(row)]
        fitting = [(row, ids) for row, ids in zip(asked, self._tokens(asked), strict=True) if len(ids) <= self._prompt_width]
        counts = {"rows": len(rows), "kept": len(fitting), "too_long": len(asked) - len(fitting), "held_out": len(rows) - len(asked)}
        files = ", ".join(self._train_files)
        if not fitting:
            raise DataError(f"{files}: no row is left to train on ({counts}); there would be nothing to ask. Fix: a larger rollout.prompt_width")
        if counts["too_long"] or counts["held_out"]:
            log.warning("%s: %s; too_long: prompts above rollout.prompt_width = %d tokens", files, counts, self._prompt_width)
        return Questions([row for row, _ in fitting], [ids for _, ids in fitting]), counts

    @functools.cached_property
    def _evaluated(self) -> Questions:
        """A held-out prompt that is too long is an error: leaving it out would change what an accuracy is of."""
        rows = _read(self._held_out_files) if self._held_out_files else [row for row in _read(self._train_files) if self._is_held_out(row)]
        tokens = self._tokens(rows)
        for row, ids in zip(rows, tokens, strict=True):
            if len(ids) > self._prompt_width:
                rule = f"it has {len(ids)} tokens where rollout.prompt_width = {self._prompt_width}, and a held-out question is never left out"
                raise row.error("prompt", row.question, rule, f"rollout.prompt_width={max(map(len, tokens))}, or remove the row")
        return Questions(rows, tokens)

    def _tokens(self, rows: Sequence[Row]) -> list[list[int]]:
        for row in rows:
            size = len(msgspec.json.encode(MathItem(row.truths)))
            if size > self._item_bytes:
                rule = f"it takes {size} bytes where task.item_bytes = {self._item_bytes}"
                raise row.error("reward_model.ground_truth", row.truths, rule, f"task.item_bytes={size}")
        return prompt_ids(self.tokenizer, [row.messages for row in rows])

    def _is_held_out(self, row: Row) -> bool:
        return xxhash.xxh3_64_intdigest(f"{SALT}/{row.question}".encode()) < self._share * (1 << 64)


def _files(named: Files) -> tuple[str, ...]:
    return (named,) if isinstance(named, str) else tuple(named)


def _read(files: Sequence[str]) -> list[Row]:
    return [row for file in files for row in read_rows(file)]
