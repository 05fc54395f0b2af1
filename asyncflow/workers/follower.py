"""Follows the weights of one model: tells the receiver what the controller desires, and hands complete, verified versions to whoever loads them
at its next safe point."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from asyncflow.contracts.weights import WeightsId, to_weights_id
from asyncflow.workers.context import WorkerContext
from asyncflow.workers.timeline import Doing
from checkpoint_engine.receiver import NotInCache, Receiver
from transfer_queue.errors import QueueError

if TYPE_CHECKING:
    import torch

CLOSE_S = 5.0  # for the last report
RECEIVING: Doing = ("busy", "receive")
RESTING: Doing = ("wait", "idle")

Load = Callable[[WeightsId, "Iterable[tuple[str, torch.Tensor]]"], None]


class WeightsFollower:
    """Receiving runs in the receiver's thread into its host cache; only `load_newest` touches the engine."""

    def __init__(self, context: WorkerContext, model: str) -> None:
        self._context, self.model = context, model
        self.loaded: WeightsId | None = None
        self._receiver: Receiver | None = None

    def reconcile(self) -> None:
        """Hand the directive's desired weights to the receiver; connects once the publisher is known."""
        directive = self._context.control.directive
        endpoint = directive.endpoints.get(f"publisher:{self.model}")
        if self._receiver is None and endpoint is not None:
            self._receiver = self._connect(endpoint)
        desired = directive.weights.get(self.model)
        if self._receiver is not None and desired is not None:
            self._receiver.want(to_weights_id(desired))

    def _connect(self, endpoint: str) -> Receiver:
        settings = self._context.config.weights
        receiver = Receiver(
            member=self._context.member,
            endpoint=endpoint,
            secure=self._context.security,
            on_ready=lambda _: self._context.wake.set(),
            on_error=self._on_error,
            on_transfer=self._on_transfer,
            spare=settings.receiver_slots - 1,
            collective=settings.transport == "collective",
            backend=settings.backend,
        )
        if receiver.pulls_because:
            print(f"{self._context.member}: takes part in no broadcast and pulls: {receiver.pulls_because}", file=sys.stderr)
        return receiver

    def _on_transfer(self, receiving: bool) -> None:
        """On the receiver's thread."""
        self._context.clock.set(*(RECEIVING if receiving else RESTING), "receiver")

    def _on_error(self, error: Exception) -> None:
        """On the receiver's thread. The error may have ended it, which `want` tells: the worker's loop must look."""
        print(f"{self._context.member}: {type(error).__name__}: {error}", file=sys.stderr)
        self._context.wake.set()

    @property
    def pending(self) -> bool:
        """Whether something newer than what is loaded is complete and verified."""
        newest = self._receiver.latest() if self._receiver is not None else None
        return newest is not None and (self.loaded is None or newest > self.loaded)

    def load_newest(self, *loads: Load) -> bool:
        """At a safe point: load the newest version, if it is newer, by every one of `loads` (a process may compute with a model in several places).
        The label is the version received, never the one asked for. False as well where a newer one just took the place of what was there."""
        if not self.pending or self._receiver is None:
            return False
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(self._receiver.get_weights())
            except NotInCache:
                return False
            for load in loads:
                load(held.weights, held)
        self.loaded = held.weights
        self._context.control.report_loaded(self.model, held.weights)
        return True

    def close(self) -> None:
        """Leave the publisher; how the versions came goes into the run's record."""
        if self._receiver is None:
            return
        self._receiver.close()
        with contextlib.suppress(QueueError, OSError):  # on the way out: a controller that is gone needs no record
            self._context.client.report("weights", {"model": self.model, **vars(self._receiver.counters)}).result(CLOSE_S)
