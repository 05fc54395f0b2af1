"""A task of your own, as small as one can be: answer with the letter that follows. `letters.yaml` trains it from random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from asyncflow.data.task import Example
from asyncflow.data.tokenizer import char_tokenizer

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

ALPHABET = "abcdef"


class Letters:
    """Questions "a", "b", …, answers "b", "c", …. The score is the share of tokens that are right: even random weights get some of it."""

    def __init__(self, *, seed: int) -> None:
        """`seed` is the run's, unless `task.options` gives one."""
        self._seed = seed
        self.tokenizer = char_tokenizer(ALPHABET)
        self._ids: dict[str, int] = self.tokenizer.get_vocab()

    def prompt(self, gid: int) -> tuple[list[int], bytes]:
        """What the source puts for group `gid`: (token ids, bytes for the scorer). A pure function of `gid`: a restarted source asks again."""
        example = self._example(Random(f"{self._seed}/{gid}").choice(ALPHABET))
        return example.prompt_ids, example.item

    def held_out(self, count: int) -> list[Example]:
        """What an evaluation asks."""
        return [self._example(ALPHABET[index % len(ALPHABET)]) for index in range(count)]

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        """In [0, 1]; an answer counts as right in an evaluation when it is 1. The end token is no part of the answer."""
        answer = [token for token in response_ids if token != self.tokenizer.eos_token_id]
        return answer.count(self._ids[item.decode()]) / len(answer) if answer else 0.0

    def _example(self, letter: str) -> Example:
        answer = ALPHABET[(ALPHABET.index(letter) + 1) % len(ALPHABET)]
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return Example(letter, prompt_ids=[begin, self._ids[letter]], item=answer.encode(), answer_ids=[self._ids[answer], end])


def prepare(config: RunConfig, model: str) -> Path:
    """`models.policy.prepare`: a directory of Hugging Face files, made once. Here: random weights."""
    from asyncflow.engines.model import ModelShape, build_model

    folder = Path(config.run.cache) / "letters-model"
    if not (folder / "config.json").is_file():
        tokenizer = Letters(seed=0).tokenizer
        special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        shape = ModelShape(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, heads=2, seed=config.run.seed, **special)
        tokenizer.save_pretrained(folder)
        build_model(shape).save_pretrained(folder)
    return folder
