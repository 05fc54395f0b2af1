"""The root's side of one hand-over: a word to all, the tensors, and a last word, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from checkpoint_engine.sharded.entries import Selection
from checkpoint_engine.sharded.exchange import GO, Exchange, WalkBroken
from checkpoint_engine.sharded.experts import unstacked
from checkpoint_engine.sharded.gather import Gather


class Lead:
    """The others wait for what `conclude` says, before a walk or after it. They must get exactly one such word."""

    def __init__(self, exchange: Exchange, select: Callable[[], Selection], prefetch: int, unstack_experts: bool) -> None:
        self._exchange, self._select, self._prefetch, self._unstack = exchange, select, prefetch, unstack_experts
        self._walking: Generator[tuple[str, torch.Tensor]] | None = None
        self.began = False  # a walk, with all ranks
        self._awaited: Callable[[int], object] | None = self._decline  # how the others get the word they wait for; None: they wait no more

    def tensors(self) -> Generator[tuple[str, torch.Tensor]]:
        """(name, whole tensor), each lent until the next is asked for. Raises WalkBroken."""
        self._walking = self._walk()
        return self._walking

    def conclude(self, word: int) -> None:
        """The one word. A walk that stands in the middle is ended first. Raises WalkBroken when that fails."""
        if self._walking is not None:
            self._walking.close()
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            awaited(word)

    def _decline(self, word: int) -> None:
        self._exchange.agree(word, 0)

    def _walk(self) -> Generator[tuple[str, torch.Tensor]]:
        selection = self._select()
        self.began = True
        self._awaited = None  # if they do not agree, or somebody goes, everybody has heard of that
        self._exchange.agree(GO, selection.fingerprint())
        gathered = iter(Gather(selection.entries, self._exchange, self._prefetch))
        try:
            for name, whole in gathered:
                yield from unstacked(name, whole) if self._unstack else [(name, whole)]
        except WalkBroken:
            raise
        except BaseException:  # GeneratorExit, or what `unstacked` raised
            for _ in gathered:  # the others are sending: it is taken off their hands, so that the group stays usable
                pass
            self._awaited = self._exchange.tell
            raise
        self._awaited = self._exchange.tell
