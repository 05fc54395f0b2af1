"""The quickstart's task: reasoning-gym's `number_sorting` of single digits in ascending order, written compactly: "3142=" → "1,2,3,4".

Lists have 1 to 9 numbers, so answers have 2 to 18 tokens, end included: p95 / p5 is 9, and that is what makes asynchrony visible.
reasoning-gym draws the items and scores the answers; its instructions in English are left out, a model of a hundred thousand parameters reads digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random

import msgspec
import reasoning_gym
from transformers import PreTrainedTokenizerFast

from asyncflow.data.split import Split, split_of
from asyncflow.data.task import Example
from asyncflow.data.tokenizer import char_tokenizer
from asyncflow.rewards.number_sorting import SortingItem, SortingScorer

ALPHABET = "0123456789,="
DRAWS_PER_SEED = 1 << 40  # reasoning-gym seeds item i with seed + i: seeds this far apart share no item
LOOK_AHEAD = 1024  # draws reserved for one item of a split; half of all draws ascend and a tenth or more of those fit, so none is missing
FIXED_SEED = 0  # of the splits that every run shares: held_out and validation
CACHED = 1 << 14


class NumberSorting:
    """Implements `asyncflow.data.task.Task`."""

    def __init__(self, *, seed: int, least: int = 1, most: int = 9, teacher_stops_after: int = 4, teacher_stops: float = 0.8) -> None:
        """Lists of `least` to `most` digits. The teacher of the warm start gives up on a longer list with probability `teacher_stops`: it sorts,
        but ends its answer after `teacher_stops_after` numbers."""
        _check(least, most, teacher_stops_after, teacher_stops)
        self._seed, self._teacher_stops_after, self._teacher_stops = seed, teacher_stops_after, teacher_stops
        self._draws = reasoning_gym.create_dataset(
            "number_sorting", seed=0, size=1 << 62, min_numbers=least, max_numbers=most, min_decimals=0, max_decimals=0, min_value=0, max_value=9
        )
        self.tokenizer: PreTrainedTokenizerFast = char_tokenizer(ALPHABET)
        self._ids: dict[str, int] = self.tokenizer.get_vocab()
        self._scorer = SortingScorer(self._draws.score_answer)
        self._example: Callable[[Split, int], Example] = functools.lru_cache(maxsize=CACHED)(self._find)

    def example(self, split: Split, index: int) -> Example:
        return self._example(split, index)

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        example = self.example("train", gid)
        return example.prompt_ids, example.item

    def held_out(self, count: int) -> list[Example]:
        return self.distinct("held_out", count)

    def distinct(self, split: Split, count: int) -> list[Example]:
        """The first `count` different questions of a split. Raises ValueError when 64 * count draws do not hold so many."""
        found: dict[str, Example] = {}
        for index in range(64 * count):
            example = self.example(split, index)
            found.setdefault(example.question, example)
            if len(found) == count:
                return list(found.values())
        raise ValueError(
            f"split {split!r} has only {len(found)} different questions among {64 * count}, and {count} are asked for, so there is no such set; "
            f"ask for fewer, or for longer lists"
        )

    def demonstration(self, index: int) -> Example:
        example = self.example("warm_start", index)
        numbers = len(example.answer_ids) // 2
        if numbers > self._teacher_stops_after and Random(f"{self._seed}/{index}").random() < self._teacher_stops:
            cut = [*example.answer_ids[: 2 * self._teacher_stops_after - 1], self._eos]
            return msgspec.structs.replace(example, answer_ids=cut)
        return example

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        return self._scorer(item, self._text(response_ids))

    @property
    def _eos(self) -> int:
        return int(self.tokenizer.eos_token_id)

    def _text(self, response_ids: Sequence[int]) -> str | None:
        """The answer's text; None where it has no end: what was cut off is no answer."""
        if not len(response_ids) or response_ids[-1] != self._eos:
            return None
        return str(self.tokenizer.decode(list(response_ids[:-1])))

    def _find(self, split: Split, index: int) -> Example:
        """The first fitting draw of the `LOOK_AHEAD` that belong to (split, index)."""
        seed = FIXED_SEED if split in ("held_out", "validation") else self._seed + 1
        first = seed * DRAWS_PER_SEED + index * LOOK_AHEAD
        for draw in range(first, first + LOOK_AHEAD):
            metadata = self._draws[draw]["metadata"]
            question = "".join(number.removesuffix(".0") for number in metadata["original_numbers"]) + "="
            if metadata["direction"] == "ascending" and split_of(question) == split:
                return self._render(question, metadata["original_numbers"], metadata["sorted_numbers"])
        raise ValueError(f"no question of split {split!r} among {LOOK_AHEAD} draws from {first}: the splits' shares leave none; allow longer lists")

    def _render(self, question: str, numbers: list[str], ordered: list[str]) -> Example:
        answer = ",".join(number.removesuffix(".0") for number in ordered)
        return Example(
            question=question,
            prompt_ids=[int(self.tokenizer.bos_token_id), *(self._ids[character] for character in question)],
            item=msgspec.json.encode(SortingItem(numbers, ordered)),
            answer_ids=[*(self._ids[character] for character in answer), self._eos],
        )


def _check(least: int, most: int, stops_after: int, stops: float) -> None:
    if not 1 <= least <= most or stops_after < 1 or not 0 <= stops <= 1:
        raise ValueError(
            f"task.options: least = {least}, most = {most}, teacher_stops_after = {stops_after}, teacher_stops = {stops} must keep "
            f"1 <= least <= most, teacher_stops_after >= 1 and 0 <= teacher_stops <= 1; no task is made; correct the recipe"
        )
