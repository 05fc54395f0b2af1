"""What is generated in one turn: the same for the worker and for the bare engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncflow.contracts.rollout import Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import ModelShape, build_model
from asyncflow.engines.rollout.vllm.table import Attempt
from asyncflow.engines.seeds import sample_seed

MODEL_SEED = RUN_SEED = 1
TEMPERATURE = 1.0


class Scope(msgspec.Struct, frozen=True):
    """Ids below `stops` end a response. A random model draws all ids about equally often, so lengths are as spread as the geometric law has it."""

    shape: ModelShape
    slots: int  # sequences at once
    groups: int  # of a turn
    rows: int  # of a group
    prompt_tokens: int
    response_tokens: int  # most
    stops: int
    repeats: int
    every_s: float  # between two updates

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return tuple(range(self.stops))

    @property
    def kv_bytes(self) -> int:
        """Of keys and values: twice what so many sequences take, each rounded up to whole blocks of at most 128 tokens."""
        tokens = -(-(self.prompt_tokens + self.response_tokens) // 128) * 128
        kv_heads = self.shape.kv_heads or self.shape.heads
        return 2 * self.slots * tokens * 2 * self.shape.layers * kv_heads * self.shape.head_dim * 4

    def prompts(self, turn: int) -> list[list[int]]:
        """[groups][prompt_tokens], others in every turn: nothing is cached from the one before."""
        draw = np.random.default_rng(turn)
        ids: list[list[int]] = draw.integers(self.stops, self.shape.vocab_size, (self.groups, self.prompt_tokens)).tolist()
        return ids


    def seeds(self, first_gid: int) -> list[int]:
        """[groups × rows] those that the worker gives vLLM for these groups: on a random model they decide how long a response gets."""
        gids = range(first_gid, first_gid + self.groups)
        return [self._seed(sample_seed(RUN_SEED, gid, row)) for gid in gids for row in range(self.rows)]

    def _seed(self, sample: int) -> int:
        request = Request("", (0,) * self.prompt_tokens, Sampling(TEMPERATURE), sample, self.response_tokens)
        return Attempt("", request, WeightsId("", 0, 0)).seed


def make_model(scope: Scope, folder: Path) -> int:
    """Hugging Face files of a random model; returns how many parameters it has."""
    model = build_model(scope.shape, MODEL_SEED)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def plain(scope: Scope) -> dict[str, Any]:
    """For another process."""
    found: dict[str, Any] = msgspec.to_builtins(scope)
    return found
