"""Settings of generation: shapes of the decode loop and how tokens are sampled."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from asyncflow.config.settings import Settings

KV_MULTIPLE = 16  # decode at one fixed width, a multiple of this: other widths differ in bits
EMBEDDED = "embedded"  # the engine that needs no import path
VLLM = "vllm"
ENGINES = {VLLM: "asyncflow.engines.rollout.vllm.engine:make_vllm"}  # others that have a name of their own
LEAST_SLOTS = 4  # 1 to 3 rows take another matrix kernel, whose bits differ


class RolloutSettings(Settings, frozen=True):
    """How responses are generated."""

    engine: str = EMBEDDED  # "embedded", "vllm", or "module:function" of another rollout engine's factory.
    slots: int = 32  # Sequences that a replica decodes at once; decode always runs all of them.
    prompt_width: int = 32  # Longest prompt in tokens; prefill is right-padded to it.
    response_width: int = 32  # Most tokens generated for one sequence.
    kv_width: int | None = None  # Width of the KV cache in tokens; null: the next multiple of 16 above prompt + response.
    temperature: float = 1.0  # Sampling temperature, above 0; log-probabilities belong to the distribution after it.
    stop_token_ids: tuple[int, ...] = ()  # Token ids that end a response; the stop token is part of it. Empty: those that the model's files name.
    samples_per_prompt: int = 8  # Sequences generated for each prompt: the rows of a group.
    pause_mode: Literal["keep", "wait", "abort"] = "keep"  # What unfinished sequences do at new weights: go on, end first, or go back to the queue.
    pull_groups: int = 8  # Most groups that a replica asks for at once; never more than it can start now.
    progress_s: float = 0.2  # How often a replica reports the progress that renews its leases.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # The engine's own; vLLM's: docs/vllm.md; embedded: prefill_rows, steps_per_call.

    @property
    def engine_path(self) -> str:
        """Import path of the engine's factory; the embedded one has none and stays "embedded"."""
        return ENGINES.get(self.engine, self.engine)

    @property
    def cache_width(self) -> int:
        """KV width in tokens: `kv_width`, or the smallest multiple of 16 that holds prompt and response."""
        if self.kv_width is not None:
            return self.kv_width
        return -(-(self.prompt_width + self.response_width) // KV_MULTIPLE) * KV_MULTIPLE
