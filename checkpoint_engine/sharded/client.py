"""The hand-over to the publisher by a trainer of several ranks: `PublisherClient`, with every rank in step."""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch

from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.sharded.exchange import FAILED, LATER
from checkpoint_engine.sharded.walk import ShardedWalk
from checkpoint_engine.weights_id import WeightsId


class ShardedClient:
    """Every rank makes one over its walk and calls the same methods in the same order, between two optimizer steps. The root alone has a `client`."""

    def __init__(self, walk: ShardedWalk, client: PublisherClient | None) -> None:
        if walk.is_root != (client is not None):
            raise ValueError(f"is_root = {walk.is_root}, client given = {client is not None}: nobody could publish; give the root alone a client")
        self._walk, self._client = walk, client
        self._walking: Generator[tuple[str, torch.Tensor]] | None = None
        self.pending: WeightsId | None = None  # still to be copied out; the same on every rank

    def publish(self, weights: WeightsId, wait_s: float = 0.0) -> bool:
        """Copy a version out if the publisher has a slot within `wait_s` seconds: True, on every rank. Else it is `pending`, and must be flushed
        before the next optimizer step; a newer one replaces it.

        Raises on the root what `PublisherClient.publish` raises, on the others WalkAbandoned in its stead; WalkBroken on those that see a rank go.
        """
        self.pending = weights
        return self._in_step(lambda client: client.publish(weights, self._tensors, wait_s), wait_s)

    def flush(self, wait_s: float = 0.0) -> bool:
        """`publish` of the pending version: True when nothing is pending any more."""
        return self.pending is None or self._in_step(lambda client: client.flush(wait_s), wait_s)

    def _in_step(self, call: Callable[[PublisherClient], object], wait_s: float) -> bool:
        weights, self.pending = self.pending, None  # whatever raises: on every rank, this version is not to be copied out any more
        walked = self._walk.follow(wait_s) if self._client is None else self._lead(self._client, call)
        if not walked:
            self.pending = weights
        return walked

    def _lead(self, client: PublisherClient, call: Callable[[PublisherClient], object]) -> bool:
        begun = self._walk.begun
        try:
            call(client)
        except BaseException:  # whatever it was, the others must not wait for it
            if self._walk.begun == begun:
                self._walk.decline(FAILED)
            self._close()
            raise
        if self._walk.begun == begun:
            self._walk.decline(LATER)
        return self._walk.begun > begun

    def _tensors(self) -> Generator[tuple[str, torch.Tensor]]:
        self._walking = self._walk.tensors()
        return self._walking

    def _close(self) -> None:
        """A walk that the publisher's side stopped in the middle is ended for the others too."""
        walking, self._walking = self._walking, None
        if walking is not None:
            walking.close()
