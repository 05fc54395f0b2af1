"""The decode slots: what each row is doing, as arrays, so that a step costs a few array operations and no Python per row."""

from __future__ import annotations

import numpy as np

from asyncflow.contracts.rollout import Chunk, Finish, Request
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.rollout.embedded.sampling import uniforms


class SlotTable:
    """S rows. Row s feeds `token[s]` at `position[s]`; an idle row feeds the padding token at position 0 and is ignored."""

    def __init__(self, slots: int, vocab: int, pad: int, history: int) -> None:
        self._pad = pad
        self.request: list[Request | None] = [None] * slots
        self.slot_of: dict[str, int] = {}
        self.active = np.zeros(slots, dtype=bool)
        self.token = np.full(slots, pad, dtype=np.int64)
        self.position = np.zeros(slots, dtype=np.int64)
        self.left = np.zeros(slots, dtype=np.int64)  # tokens of the budget not yet generated
        self.seed = np.zeros(slots, dtype=np.uint64)
        self.temperature = np.ones(slots, dtype=np.float64)
        self._stops = np.zeros((slots, vocab), dtype=bool)
        self._free = list(range(slots - 1, -1, -1))
        self._made = np.zeros(slots, dtype=np.int64)  # tokens not yet handed over, at most `history` a row
        self._tokens = np.zeros((slots, history), dtype=np.int64)
        self._logprobs = np.zeros((slots, history), dtype=np.float32)
        self._rows = np.arange(slots)

    @property
    def free(self) -> int:
        return len(self._free)

    def occupy(self, request: Request, stop_token_ids: tuple[int, ...]) -> int:
        """Take a free slot for a request whose first step feeds its last token."""
        slot = self._free.pop()
        self.request[slot], self.slot_of[request.id] = request, slot
        self.active[slot] = True
        self.token[slot], self.position[slot] = request.token_ids[-1], len(request.token_ids) - 1
        self.left[slot], self.seed[slot] = request.budget_left, np.uint64(request.seed & 0xFFFFFFFFFFFFFFFF)
        self.temperature[slot] = request.sampling.temperature
        self._stops[slot] = False
        self._stops[slot, list(stop_token_ids)] = True
        self._made[slot] = 0
        return slot

    def vacate(self, slot: int) -> None:
        request = self.request[slot]
        assert request is not None, f"slot {slot} is already idle"
        del self.slot_of[request.id]
        self.request[slot] = None
        self.active[slot], self.token[slot], self.position[slot], self.temperature[slot] = False, self._pad, 0, 1.0
        self._free.append(slot)

    def uniforms(self) -> np.ndarray:
        """[S] the random number of each row's next token, whose absolute position is one past the token that is fed."""
        return uniforms(self.seed, self.position + 1)

    def advance(self, tokens: np.ndarray, logprobs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a token to every active row; returns the slots that reached a stop token and those that used up their budget."""
        active, rows = self.active, self._rows[self.active]
        self._tokens[rows, self._made[rows]] = tokens[rows]
        self._logprobs[rows, self._made[rows]] = logprobs[rows]
        self._made += active
        self.position += active
        self.left -= active
        self.token[rows] = tokens[rows]
        stopped = active & self._stops[self._rows, tokens]
        exhausted = active & ~stopped & (self.left == 0)
        return np.flatnonzero(stopped), np.flatnonzero(exhausted)

    def hand_over(self, slots: np.ndarray, weights: WeightsId, finish: Finish | None = None) -> list[Chunk]:
        """What these rows made since their last chunk; rows that made nothing and do not finish are left out."""
        chunks = []
        made, tokens, logprobs = self._made[slots].tolist(), self._tokens[slots].tolist(), self._logprobs[slots].tolist()
        for slot, n, row_tokens, row_logprobs in zip(slots.tolist(), made, tokens, logprobs, strict=True):
            request = self.request[slot]
            if request is not None and (n or finish):
                chunks.append(Chunk(request.id, row_tokens[:n], row_logprobs[:n], weights.version, finish, weights.epoch))
        self._made[slots] = 0
        return chunks

    def active_slots(self) -> np.ndarray:
        return self._rows[self.active]
