"""A random model and a task whose score is dense, so that a few steps from random weights have real gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asyncflow.data.number_sorting import NumberSorting
from asyncflow.engines.model import ModelShape, build_model

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


class DenseSorting(NumberSorting):
    """The quickstart's questions; the score is a pure function of the sampled tokens that differs between almost any two responses."""

    def score(self, item: bytes, response_ids: Sequence[int]) -> float:
        return (sum(place * token for place, token in enumerate(response_ids, start=1)) % 17) / 16


def dense_sorting(seed: int) -> DenseSorting:
    return DenseSorting(seed=seed)


def prepare(config: RunConfig, name: str) -> Path:
    """A random model of 2 layers, hidden 64, as ordinary Hugging Face files."""
    folder = Path(config.run.cache) / "random-model"
    if not (folder / "config.json").exists():
        tokenizer = dense_sorting(1).tokenizer
        shape = ModelShape(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            heads=2,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            seed=7,
        )
        build_model(shape).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder
