"""A task of mathematical questions in parquet files: verl's columns, the model's own chat template, answers compared by math-verify."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncflow.data.chat import load_tokenizer, prompt_ids, stops_of
from asyncflow.data.order import EndlessOrder
from asyncflow.data.parquet import Message
from asyncflow.data.questions import MathItem, QuestionFiles
from asyncflow.data.task import Example
from asyncflow.rewards.answers import FORMS, Form
from asyncflow.rewards.coming_up import come_up
from asyncflow.rewards.math_judge import MathJudge
from asyncflow.rewards.math_process import COME_UP_S, END_S
from asyncflow.rewards.row_clock import uncounted
from asyncflow.rewards.verdict import Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOAD_S = 120.0  # a tokenizer is loaded within this, on a busy machine too
FIXED_SEED = 0  # of the held-out questions: the same for every run
Files = str | Sequence[str]


class MathParquet:
    """Implements what a run needs of `asyncflow.data.task.Task` (no warm start: there are no demonstrations). Files are read by the source and by
    whoever evaluates, never by a scorer."""

    def __init__(
        self,
        *,
        seed: int,
        tokenizer: str,  # folder of the model's Hugging Face files
        train: Files,
        held_out: Files | None = (),  # questions of these are evaluated, and never trained
        held_out_share: float = 0.0,  # without such files: this share of the training questions, by the hash of their text
        prompt_width: int,  # longest prompt in tokens
        item_bytes: int,
        stop_token_ids: Sequence[int] = (),  # none: the model's own
        forms: Sequence[Form] = FORMS,
        compare_s: float = 5.0,  # most seconds that comparing one answer may take
        compare_bytes: int = 2 << 30,  # most memory of the process that compares
    ) -> None:
        self._seed, self._folder, self._stop_token_ids = seed, tokenizer, tuple(stop_token_ids)
        self._questions = QuestionFiles(_files("train", train), _files("held_out", held_out), held_out_share, prompt_width, item_bytes, self._encode)
        self._judge = MathJudge(forms, compare_s, compare_bytes)
        self._compare_s, self._loaded = compare_s, False

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        return load_tokenizer(self._folder)

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """(prompt token ids, `item` bytes): the training questions in an endless order of the run's seed. Raises DataError."""
        example = self._questions.training.example(self._order(gid))
        return example.prompt_ids, example.item

    def held_out(self, count: int) -> list[Example]:
        """The first `count` different held-out questions, in an order that is the same for every run and mixes the file, so that a few are of all
        kinds. Raises DataError where there are fewer."""
        self._questions.refuse_fewer(count)
        evaluated = self._questions.evaluated
        return [evaluated.example(row) for row in EndlessOrder(len(evaluated.rows), FIXED_SEED).first(count)]

    @property
    def counts(self) -> dict[str, int]:
        """See `QuestionFiles.counts`."""
        return self._questions.counts

    def prepare(self) -> None:
        """Have everything that scoring needs: tokenizer, tokens that end a response, the process that compares. Raises RuntimeError when that does
        not come up, TimeoutError when one of them is not there by its deadline."""
        come_up(self._loading, LOAD_S, self._load)
        come_up("starting the process that compares answers", COME_UP_S, self._judge.start)

    def verdict(self, item: bytes, response_ids: Sequence[int]) -> Verdict:
        """Of a response as it was sampled. Never raises for what is in the response. Raises ValueError for a broken item."""
        try:
            truths = msgspec.json.decode(item, type=MathItem).truths
        except msgspec.DecodeError as error:
            raise ValueError(f"item {item[:40]!r} is none of this task ({error}) and cannot be scored; source and scorer need one task") from error
        self._load()
        if not len(response_ids) or int(response_ids[-1]) not in self._stops:
            return Verdict.UNFINISHED
        return self._judge(truths, str(self.tokenizer.decode([int(token) for token in response_ids[:-1]], skip_special_tokens=True)))

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        return float(self.verdict(item, response_ids) is Verdict.RIGHT)

    @property
    def longest_s(self) -> float:
        """One comparison, and the end of a process that took longer."""
        return self._compare_s + END_S

    def close(self) -> None:
        """End the process that compares answers."""
        self._judge.close()

    def _load(self) -> None:
        if not self._loaded:
            with uncounted(self._loading, LOAD_S):
                self._loaded = bool(self._stops)

    @property
    def _loading(self) -> str:
        return f"loading the tokenizer in {self._folder}"

    @functools.cached_property
    def _stops(self) -> frozenset[int]:
        return frozenset(self._stop_token_ids or stops_of(self._folder, self.tokenizer))

    @functools.cached_property
    def _order(self) -> EndlessOrder:
        return EndlessOrder(len(self._questions.training.rows), self._seed)

    def _encode(self, chats: Sequence[list[Message]]) -> list[list[int]]:
        return prompt_ids(self.tokenizer, chats)


def _files(key: str, named: Files | None) -> tuple[str, ...]:
    if named is None and key == "held_out":
        return ()  # as a command line takes a recipe's file away
    files = (named,) if isinstance(named, str) else tuple(named) if isinstance(named, list | tuple) else None
    if files is None or not all(isinstance(file, str) and file for file in files):
        rule = "it must be the name of a file, or a list of such"
        raise ValueError(f"task.options.{key} = {named!r}: {rule}; nothing was read. Fix: task.options.{key}=FILE")
    return files
