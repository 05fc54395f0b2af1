"""What a rollout engine is: requests of token ids in, chunks of token ids with log-probabilities and versions out.

Engines see token ids only; chat, tools and text live in workflows. State of an interrupted request travels in the request
(`token_ids` then holds prompt and what was generated), so any replica can go on with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import msgspec

from asyncflow.contracts.weights import WeightsId

if TYPE_CHECKING:
    import torch

Finish = Literal["stop", "length", "aborted"]
PauseMode = Literal["keep", "wait", "abort"]


class Sampling(msgspec.Struct, frozen=True):
    """How a token is chosen. Log-probabilities belong to exactly this distribution (after temperature)."""

    temperature: float = 1.0  # 0 is greedy; the log-probabilities are then those of temperature 1
    stop_token_ids: tuple[int, ...] = ()


class Request(msgspec.Struct, frozen=True):
    id: str
    token_ids: tuple[int, ...]  # prompt, then what earlier attempts generated and kept
    sampling: Sampling
    seed: int  # 64 bit, hash(run, prompt, sample): the random number of a token is hash(seed, absolute position)
    budget_left: int  # most tokens still to generate, >= 1
    min_version: int = 0  # with `min_epoch`: no token may be made by weights older than (min_epoch, min_version)
    min_epoch: int = 0  # a version that was rolled back comes again in a later epoch


class Chunk(msgspec.Struct, frozen=True):
    """Some more tokens of one request, all made by one version of the weights."""

    id: str
    token_ids: list[int]  # a stop token is included: it was sampled
    logprobs: list[float]  # of the sampled distribution, one a token
    version: int
    finish: Finish | None = None  # set on the last chunk of a request, exactly once
    epoch: int = 0  # of these weights: with the version it says which are newer


class WeightsNotLoaded(RuntimeError):
    """A complete set could not be loaded for a reason that is not in the set. The old weights serve, and the load may be tried again."""


class Capacity(msgspec.Struct, frozen=True):
    slots: int  # rows that can decode at once
    free_slots: int  # slots that neither run nor are promised to a queued request
    running: int
    queued: int  # for a slot, or in one for their prefill
    parts: bool = False  # a group is welcome as soon as one slot is free: its other rows start as slots free, between two decode steps


Work = Literal["decode", "prefill"]


class CostSink(Protocol):
    def __call__(self, work: Work, size: float, seconds: float, calls: float = 1.0) -> None:
        """So many equal calls, each of this size and duration."""


@runtime_checkable
class Metered(Protocol):
    """A rollout engine that tells what its work costs. That of any other is not measured."""

    def meter(self, add: CostSink) -> None:
        """From now on `add("decode", running rows, seconds)` for each decode step, and `add("prefill", tokens, seconds)` each time rows enter slots:
        tokens of the prompts of all of them, though rows of a group may share one prefill. Called inside `chunks`."""


class RolloutEngine(Protocol):
    """Driven by its worker: `generate` queues requests, `chunks` advances decoding. A load happens only between two `chunks` calls."""

    def start(self) -> None:
        """Allocate. Weights come with the first `load_weights`."""

    def generate(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises ValueError for a duplicate id, an empty prompt, a budget < 1, one that exceeds the engine's widths, or
        (`min_epoch`, `min_version`) above the loaded one."""

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        """Advance (embedded: one decode step over all slots) and return what came. [] when idle. Every request ends in exactly one finish."""

    def next_chunk_s(self) -> float:
        """Seconds until `chunks` has something new, or until no request queues: 0.0 for an engine that decodes in `chunks` itself; one that computes
        elsewhere says how long its worker may wait for messages meanwhile, infinity when nothing runs."""

    def abort(self, ids: Sequence[str]) -> None:
        """End requests; each unknown id is ignored, each known one yields a last chunk with finish "aborted" from the next `chunks`."""

    def pause(self, mode: PauseMode = "keep") -> None:
        """Reach a safe point. keep: running requests stay and go on after `resume`."""

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy in a complete set under Hugging Face names. Raises (the old weights keep serving) ValueError on a missing, unknown or wrongly shaped
        tensor, WeightsNotLoaded where the set was good. A worker hands over its host cache's lease (`checkpoint_engine.slot.Lease`): an engine that
        computes in other processes may keep it and map its memory there, instead of copying.

        Tokens that were made before come at the latest with the first `chunks` after it: what then has none starts from these weights."""

    def resume(self) -> None: ...

    @property
    def loaded(self) -> WeightsId | None:
        """The weights the next token will be made with."""

    def capacity(self) -> Capacity: ...

    def release_memory(self) -> None: ...

    def restore_memory(self) -> None: ...

    def close(self) -> None: ...
