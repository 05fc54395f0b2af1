"""Which requests an engine takes: every rule of the contract, checked for a whole call before any of it is queued."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

from asyncflow.contracts.rollout import Request
from asyncflow.contracts.weights import WeightsId


class Limits:
    """The widths a request has to fit."""

    def __init__(self, kv_width: int, vocab: int) -> None:
        self.kv_width, self.vocab = kv_width, vocab

    def check(self, requests: Sequence[Request], known: Container[str], loaded: WeightsId | None) -> None:
        """Raise ValueError for the first request that breaks a rule; then none of the call is queued."""
        seen: set[str] = set()
        for request in requests:
            if request.id in known or request.id in seen:
                raise ValueError(_refuse(request, "its id is already queued or running", "choose another id or abort the first"))
            seen.add(request.id)
            self._check_tokens(request)
            self._check_sampling(request)
            _check_version(request, loaded)

    def _check_tokens(self, request: Request) -> None:
        if not request.token_ids:
            raise ValueError(_refuse(request, "token_ids is empty: the first token needs one before it", "start the prompt with a BOS token"))
        if request.budget_left < 1:
            raise ValueError(_refuse(request, f"budget_left = {request.budget_left} is below 1", "do not send a request that is already complete"))
        length = len(request.token_ids) + request.budget_left
        if length > self.kv_width:
            rule = f"{len(request.token_ids)} tokens + budget_left {request.budget_left} = {length} exceed kv_width = {self.kv_width}"
            raise ValueError(_refuse(request, rule, "shorten the prompt or the budget, or raise kv_width"))
        if min(request.token_ids) < 0 or max(request.token_ids) >= self.vocab:
            raise ValueError(_refuse(request, f"a token id lies outside 0..{self.vocab - 1}", "use the tokenizer of this model"))

    def _check_sampling(self, request: Request) -> None:
        temperature, stops = request.sampling.temperature, request.sampling.stop_token_ids
        if not (math.isfinite(temperature) and temperature >= 0.0):
            raise ValueError(_refuse(request, f"temperature = {temperature} is not a finite number >= 0", "use 0 for greedy"))
        if any(not 0 <= stop < self.vocab for stop in stops):
            raise ValueError(_refuse(request, f"stop_token_ids {stops} hold an id outside 0..{self.vocab - 1}", "use the tokenizer of this model"))


def _check_version(request: Request, loaded: WeightsId | None) -> None:
    if loaded is None:
        raise ValueError(_refuse(request, "no weights are loaded", "call load_weights first"))
    if (request.min_epoch, request.min_version) > (loaded.epoch, loaded.version):
        of = f" of epoch {request.min_epoch}" if request.min_epoch != loaded.epoch else ""
        rule = f"min_version = {request.min_version}{of} is above the loaded version {loaded.version}{of and f' of epoch {loaded.epoch}'}"
        raise ValueError(_refuse(request, rule, "load newer weights first, or give the request to another replica"))


def _refuse(request: Request, rule: str, fix: str) -> str:
    return f"request {request.id!r} is refused: {rule}; nothing of this call was queued; {fix}"
