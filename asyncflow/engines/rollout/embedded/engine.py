"""The embedded rollout engine: fixed decode slots over a transformers model, refilled as sequences finish.

The tokens of a request, and the bits of their log-probabilities, depend on (weights, token_ids, seed, sampling) only: not on its slot, its
neighbours, the order of arrival or refills. Prefill covers all tokens but the last; the last one is fed by the first decode step, so every logit
that is sampled comes from one code path and one shape. One limit: a *resumed* request gets its keys and values from prefill where the first attempt
got them from decode, and these may differ in the last bits; its random numbers are the same (absolute positions).

Driven by one thread. Nothing here waits, so `wait_s` has no use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncflow.contracts.rollout import Capacity, Chunk, CostSink, PauseMode, Request
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import load_hf
from asyncflow.engines.rollout.embedded.admission import Limits
from asyncflow.engines.rollout.embedded.forward import Forward
from asyncflow.engines.rollout.embedded.prompts import PromptStore
from asyncflow.engines.rollout.embedded.sampling import NonFiniteLogitsError, sample
from asyncflow.engines.rollout.embedded.slots import SlotTable
from asyncflow.engines.rollout.embedded.weights import load_complete


class EmbeddedRolloutEngine:
    """Implements `asyncflow.contracts.rollout.RolloutEngine`. The engine owns `model`: nobody else may change its parameters."""

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        *,
        slots: int = 64,
        prompt_width: int,  # prefill width in tokens; longer inputs are prefilled in chunks of it
        kv_width: int,  # most tokens a sequence may have, prompt and response; a multiple of 16
        stop_token_ids: Sequence[int] = (),  # added to those of every request
        pad_token_id: int = 0,
        prefill_rows: int = 4,  # prompts a prefill batch
        steps_per_call: int = 1,  # decode steps a `chunks` call; more means fewer, longer chunks, never other tokens
        max_queued: int = 1 << 14,  # requests that may wait for a slot
    ) -> None:
        _check_widths(slots=slots, prompt_width=prompt_width, kv_width=kv_width, prefill_rows=prefill_rows, steps_per_call=steps_per_call)
        self._model = (load_hf(model) if isinstance(model, str | Path) else model).eval()
        self._slots, self._prompt_width, self._kv_width = slots, prompt_width, kv_width
        self._prefill_rows, self._steps, self._max_queued = prefill_rows, steps_per_call, max_queued
        vocab = int(self._model.config.vocab_size)
        _check_model(self._model, kv_width, vocab, (pad_token_id, *stop_token_ids))
        self._limits = Limits(kv_width, vocab)
        self._stops = tuple(stop_token_ids)
        self._table = SlotTable(slots, vocab, pad_token_id, steps_per_call)
        self._queue: dict[str, Request] = {}  # first in, first out
        self._ended: list[Chunk] = []  # to be returned by the next `chunks`
        self._loaded: WeightsId | None = None
        self._forward: Forward | None = None
        self._prompts: PromptStore | None = None
        self._paused = False
        self._dead: str | None = "it was not started: call start()"
        self._cost: CostSink | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Allocate the caches and prove that every slot computes the same bits. Raises RuntimeError where it does not."""
        self._dead = None
        self._allocate()

    def _allocate(self) -> None:
        self._forward = Forward(self._model, self._slots, self._kv_width, self._prefill_rows, self._prompt_width)
        self._forward.check_rows_agree()
        self._prompts = PromptStore(self._forward, self._forward.prefill_rows, bound=self._slots + self._forward.prefill_rows)

    def release_memory(self) -> None:
        """Free the caches (the weights stay: they are what the next load is checked against). Needs an engine without running requests."""
        self._alive()
        if self._table.slot_of:
            running = len(self._table.slot_of)
            raise RuntimeError(f"{running} requests are running and their cache would be lost, so it is kept; pause('abort') or pause('wait') first")
        self._forward = self._prompts = None

    def restore_memory(self) -> None:
        self._alive()
        if self._forward is None:
            self._allocate()

    def close(self) -> None:
        """Free everything; requests that have not finished are gone. Idempotent."""
        self._dead = "it was closed"
        self._forward = self._prompts = None
        self._queue.clear()
        self._ended.clear()

    def _alive(self) -> None:
        if self._dead is not None:
            raise RuntimeError(f"the rollout engine cannot be used: {self._dead}")

    # ---------------------------------------------------------------- requests

    def generate(self, requests: Sequence[Request]) -> None:
        """Queue all of `requests` or, with a ValueError that names the first bad one, none."""
        self._alive()
        known = self._queue.keys() | self._table.slot_of.keys() | {chunk.id for chunk in self._ended if chunk.finish}
        self._limits.check(requests, known, self._loaded)
        if len(self._queue) + len(requests) > self._max_queued:
            came = f"{len(self._queue)} requests wait and {len(requests)} more came"
            raise ValueError(f"max_queued = {self._max_queued} is exceeded: {came}; none of these was queued; call chunks() until they fit")
        self._queue.update((request.id, request) for request in requests)

    def next_chunk_s(self) -> float:
        """Decoding happens in `chunks`, so its worker never waits for it."""
        return 0.0

    def abort(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            slot = self._table.slot_of.get(id_)
            if slot is not None:
                self._ended += self._table.hand_over(np.array([slot]), self._weights, "aborted")
                self._table.vacate(slot)
            elif self._queue.pop(id_, None) is not None:
                self._ended.append(Chunk(id_, [], [], self._weights.version, "aborted", self._weights.epoch))

    def capacity(self) -> Capacity:
        running, queued = len(self._table.slot_of), len(self._queue)
        return Capacity(self._slots, max(0, self._slots - running - queued), running, queued)

    # ---------------------------------------------------------------- decoding

    def meter(self, add: CostSink) -> None:
        """See `asyncflow.contracts.rollout.Metered`."""
        self._cost = add

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        """`steps_per_call` decode steps, none while paused; a request that is running makes one chunk. [] when idle."""
        self._alive()
        if not self._paused:
            for _ in range(self._steps):
                self._measured_admit()
                if not self._table.slot_of:
                    break
                self._measured_step()
            self._ended += self._table.hand_over(self._table.active_slots(), self._weights)
        ended, self._ended = self._ended, []
        return ended

    def _measured_admit(self) -> None:
        start_s = time.perf_counter()
        tokens = self._admit()
        if tokens and self._cost is not None:
            self._cost("prefill", tokens, time.perf_counter() - start_s)

    def _measured_step(self) -> None:
        start_s, running = time.perf_counter(), len(self._table.slot_of)
        self._step()
        if self._cost is not None:
            self._cost("decode", running, time.perf_counter() - start_s)

    def _admit(self) -> int:
        """Returns how many prompt tokens the rows have that got a slot."""
        tokens = 0
        if not self._queue or not self._table.free:
            return tokens
        if self._forward is None or self._prompts is None:
            raise RuntimeError("the engine's memory is released: call restore_memory() before chunks()")
        while self._queue and self._table.free:
            request = self._queue.pop(next(iter(self._queue)))
            prompt = request.token_ids[:-1]
            slot = self._table.occupy(request, request.sampling.stop_token_ids + self._stops)
            tokens += len(request.token_ids)
            if prompt:
                upcoming = (other.token_ids[:-1] for other in self._queue.values())
                self._forward.install(slot, self._prompts.get(prompt, upcoming))
        return tokens

    def _step(self) -> None:
        table = self._table
        assert self._forward is not None, "running requests keep the memory from being released"
        logits = self._forward.decode(table.token, table.position)
        self._refuse_non_finite(logits)
        stopped, exhausted = table.advance(*sample(logits, table.temperature, table.uniforms()))
        self._ended += table.hand_over(stopped, self._weights, "stop") + table.hand_over(exhausted, self._weights, "length")
        for slot in (*stopped.tolist(), *exhausted.tolist()):
            table.vacate(slot)

    def _refuse_non_finite(self, logits: np.ndarray) -> None:
        bad = self._table.active & ~np.isfinite(logits).all(axis=1)
        if bad.any():
            # The cache now holds such numbers too, and a masked NaN is still a NaN: this engine is of no further use.
            ids = [request.id for request, is_bad in zip(self._table.request, bad.tolist(), strict=True) if request is not None and is_bad]
            self._dead = f"logits of {ids} were not finite"
            raise NonFiniteLogitsError(ids, self._weights.version)

    # ---------------------------------------------------------------- weights

    def pause(self, mode: PauseMode = "keep") -> None:
        """Between two `chunks` calls the engine is at a safe point. keep: running requests stay and go on after `resume`; wait: they are run to
        their end first (at most kv_width steps; the next `chunks` returns what they made); abort: running and queued ones end as aborted."""
        self._alive()
        if mode == "wait":
            while self._table.slot_of:
                self._step()
                self._ended += self._table.hand_over(self._table.active_slots(), self._weights)
        elif mode == "abort":
            self.abort([*self._table.slot_of, *self._queue])
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def load_weights(self, weights: WeightsId, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Running requests keep their keys and values and go on with the new weights; those that wait start with them.

        Raises ValueError on a set that is not complete or does not fit, or on an older id than the loaded one (running requests were promised
        their min_version); the old weights then go on serving.
        """
        self._alive()
        if self._loaded is not None and weights < self._loaded:
            rule = f"older than the loaded {self._loaded}, which goes on serving"
            raise ValueError(f"weights {weights} are refused: {rule}; load a newer (epoch, version), or build a new engine")
        load_complete(self._model, tensors, str(weights))
        self._loaded = weights
        if self._prompts is not None:
            self._prompts.clear()

    @property
    def loaded(self) -> WeightsId | None:
        return self._loaded

    @property
    def _weights(self) -> WeightsId:
        assert self._loaded is not None, "requests are refused while no weights are loaded"
        return self._loaded


def _check_widths(*, slots: int, prompt_width: int, kv_width: int, prefill_rows: int, steps_per_call: int) -> None:
    rules = [
        ("slots", slots, slots >= 4, "at least 4: fewer rows take another matrix kernel"),
        ("prefill_rows", prefill_rows, prefill_rows >= 1, "at least 1"),
        ("prompt_width", prompt_width, prompt_width >= 4, "at least 4: fewer rows take another matrix kernel"),
        ("kv_width", kv_width, kv_width >= 16 and kv_width % 16 == 0, "a positive multiple of 16: other widths differ in bits"),
        ("steps_per_call", steps_per_call, steps_per_call >= 1, "at least 1"),
    ]
    for key, value, holds, rule in rules:
        if not holds:
            raise ValueError(f"{key} = {value} must be {rule}; the engine is not built; change rollout.{key}")


def _check_model(model: PreTrainedModel, kv_width: int, vocab: int, tokens: Sequence[int]) -> None:
    positions = int(model.config.max_position_embeddings)
    if kv_width > positions:
        rule = f"at most the model's max_position_embeddings = {positions}"
        raise ValueError(f"kv_width = {kv_width} must be {rule}; the engine is not built; lower rollout.kv_width")
    outside = [token for token in tokens if not 0 <= token < vocab]
    if outside:
        fix = "use this model's tokenizer, and rollout.stop_token_ids=[] for the stop tokens that its files name"
        raise ValueError(f"pad or stop token ids {outside} lie outside 0..{vocab - 1}; the engine is not built; {fix}")
