"""How the ranks of a trainer hand one version over together: the one way, whoever makes its tensors whole.

A walk is collective inside: a rank that walks alone, or stops alone, leaves the others waiting. So every rank calls `hand_over`; the root alone gets
tensors, and takes a copy of them; the others are through when the root says that the copy was taken (`True`), that it will be taken later (`False`),
or that it never will (WalkAbandoned).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from checkpoint_engine.collective import GroupError

if TYPE_CHECKING:
    import torch

Walked: TypeAlias = "Iterable[tuple[str, torch.Tensor]]"
Take: TypeAlias = "Callable[[Callable[[], Walked]], bool]"
"""What the root does with the tensors of a version: False, and it has not asked for any or may ask again, if it takes no copy now."""


MOST_WORDS = 1000  # of an error that the others are told


class WalkAbandoned(RuntimeError):
    """The root did not take the version (its own error says why). The group that the ranks walk in is as usable as before. `pending`: it is still to
    be handed over."""

    def __init__(self, message: str, pending: bool = False) -> None:
        super().__init__(message)
        self.pending = pending


@runtime_checkable
class Walk(Protocol):
    @property
    def is_root(self) -> bool: ...

    def hand_over(self, take: Take, wait_s: float = 0.0, held: Callable[[], bool] = lambda: False) -> bool:
        """`take` runs on the root only, and what it raises is raised there. `wait_s`: how long it may wait before it asks for tensors. `held`: asked
        on the root after `take` raised: the version is still to be handed over. Raises WalkAbandoned on the others, GroupError where a rank went."""


class PlainWalk:
    """A walk over what each rank iterates by itself, with whatever collective happens inside (verl's generators). `say(error)` brings the root's last
    word to the others, "" for a copy that was taken; `hear()` waits for it and raises GroupError when it does not come."""

    def __init__(self, tensors: Walked, is_root: bool, say: Callable[[str], None], hear: Callable[[], str]) -> None:
        self._tensors, self._say, self._hear = tensors, say, hear
        self.is_root = is_root

    def hand_over(self, take: Take, wait_s: float = 0.0, held: Callable[[], bool] = lambda: False) -> bool:
        walking = iter(self._tensors)
        if not self.is_root:
            self._follow(walking)
            return True
        try:
            take(lambda: walking)
        except BaseException as error:  # whatever it was, the others must not wait for it
            with contextlib.suppress(Exception):  # the walk's own end: the first error is the one to tell
                _walk_on(walking)
            self._say(f"{type(error).__name__}: {error}"[:MOST_WORDS])
            raise
        self._say("")
        return True

    def _follow(self, walking: Iterator[tuple[str, torch.Tensor]]) -> None:
        _walk_on(walking)
        error = self._hear()
        if error:
            raise WalkAbandoned(f"trainer rank 0 did not take the version: nothing was sent ({error})")


def _walk_on(walking: Iterator[object]) -> None:
    """To the end: the other ranks are in the collectives inside."""
    for _ in walking:
        pass


__all__ = ["GroupError", "PlainWalk", "Take", "Walk", "WalkAbandoned", "Walked"]
