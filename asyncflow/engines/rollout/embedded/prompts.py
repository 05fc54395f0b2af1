"""Prompts already prefilled with the loaded weights: the rows of a group share their prompt, so its keys and values are computed once and copied.

A copy is the same bits as a prefill of its own, for prefill always runs one shape and no row sees another. A load of weights clears the store:
nothing is ever answered from keys and values that other weights made before a request started.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from asyncflow.engines.rollout.embedded.forward import Forward, PromptKv

Prompt = tuple[int, ...]


class PromptStore:
    """At most `bound` prompts, least recently used out first. `bound` must hold one admission: slots plus one prefill batch."""

    def __init__(self, forward: Forward, batch: int, bound: int) -> None:
        self._forward, self._batch, self._bound = forward, batch, bound
        self._kept: OrderedDict[Prompt, PromptKv] = OrderedDict()
        self.prefills = 0  # batches computed since the start

    def get(self, prompt: Prompt, upcoming: Iterable[Prompt]) -> PromptKv:
        """Keys and values of a non-empty prompt. A miss prefills it together with the next missing ones of `upcoming`: a full batch costs no more."""
        if prompt not in self._kept:
            self._fill(prompt, upcoming)
        self._kept.move_to_end(prompt)
        return self._kept[prompt]

    def _fill(self, prompt: Prompt, upcoming: Iterable[Prompt]) -> None:
        missing = {prompt: None}  # ordered, distinct
        for other in upcoming:
            if len(missing) == self._batch:
                break
            if other and other not in self._kept:
                missing[other] = None
        prompts = list(missing)
        self.prefills += 1
        for key, kept in zip(prompts, self._forward.prefill(prompts), strict=True):
            self._kept[key] = kept
        while len(self._kept) > self._bound:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()
