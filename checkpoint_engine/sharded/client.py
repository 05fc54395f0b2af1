"""The hand-over to the publisher by a trainer of several ranks: `PublisherClient`, with every rank in step."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.sharded.walk import ShardedWalk
from checkpoint_engine.walking import WalkAbandoned, Walked
from checkpoint_engine.weights_id import WeightsId


class ShardedClient:
    """Every rank makes one over its walk and calls the same methods in the same order, between two optimizer steps. The root alone has a `client`."""

    def __init__(self, walk: ShardedWalk, client: PublisherClient | None) -> None:
        if walk.is_root != (client is not None):
            raise ValueError(f"is_root = {walk.is_root}, client given = {client is not None}: nobody could publish; give the root alone a client")
        self._walk, self._client = walk, client
        self._tensors: Callable[[], Walked] = _alone  # of the hand-over that goes on
        self.pending: WeightsId | None = None  # still to be copied out; the same on every rank

    def publish(self, weights: WeightsId, wait_s: float = 0.0) -> bool:
        """Copy a version out if the publisher has a slot within `wait_s` seconds: True, on every rank, once the publisher has taken the copy. Else it
        is `pending`, and must be flushed before the next optimizer step; a newer one replaces it.

        Raises on the root what `PublisherClient.publish` raises, on the others WalkAbandoned in its stead; WalkBroken when a rank went.
        """
        self.pending = weights
        return self._in_step(lambda client: client.publish(weights, lambda: self._tensors(), wait_s), wait_s)

    def flush(self, wait_s: float = 0.0) -> bool:
        """`publish` of the pending version: True when nothing is pending any more."""
        return self.pending is None or self._in_step(lambda client: client.flush(wait_s), wait_s)

    def _in_step(self, call: Callable[[PublisherClient], object], wait_s: float) -> bool:
        weights, self.pending = self.pending, None
        try:
            taken = self._walk.hand_over(lambda tensors: self._take(tensors, call), wait_s, lambda: self._held is not None)
        except WalkAbandoned as error:
            self.pending = weights if error.pending else None
            raise
        except BaseException:  # whatever it was is the caller's: here it is only noted what is still to be handed over
            self.pending = self._held
            raise
        finally:
            self._tensors = _alone
        if not taken:
            self.pending = weights
        return taken

    def _take(self, tensors: Callable[[], Walked], call: Callable[[PublisherClient], object]) -> bool:
        """On the root."""
        assert self._client is not None
        self._tensors = tensors
        call(self._client)
        return self._client.pending is None

    @property
    def _held(self) -> WeightsId | None:
        return self._client.pending if self._client is not None else None


def _alone() -> Walked:
    raise RuntimeError(
        "the root's client walks alone: the other ranks would not send their parts; call `flush` of ShardedClient on every rank instead"
    )
