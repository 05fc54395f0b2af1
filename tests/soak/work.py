"""What every worker of a soak has: its seat, its client, its record, and patience with servers that are killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from tests.soak import content
from tests.soak.records import Hiccup, Recorder, Wrong
from tests.soak.settings import Seat
from transfer_queue import messages as m
from transfer_queue.client import Pending, QueueClient
from transfer_queue.errors import QueueError, QueueGone, QueueTimeout

WAIT_S = 5.0  # of a parked request: shorter than the heartbeat, which requests are
REPLY_S = 10.0  # much shorter than the heartbeat, too: who waits in vain for a dead server says nothing to the controller
TRIES = 20
SHARDS_GONE = ("shard_lost", "unknown_shard", "no_shards")  # codes of errors that end when the shard is back

P = ParamSpec("P")
T = TypeVar("T")


def patient(note: Recorder, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`call(…)`, again when a server was gone; the queue says that this is safe. Raises what the last try raised."""
    for left in reversed(range(TRIES)):
        try:
            return call(*arguments, **named)
        except (QueueGone, QueueTimeout, QueueError) as error:
            if not left or (isinstance(error, QueueError) and error.code not in SHARDS_GONE):
                raise
            note(Hiccup(error=f"{type(error).__name__}: {error}"))
    raise AssertionError("the last try returns or raises")


@dataclass(frozen=True)
class Worker:
    seat: Seat
    life: int
    client: QueueClient
    spec: m.TopicSpec
    note: Recorder

    @property
    def topic(self) -> str:
        return self.spec.name

    def patient(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        return patient(self.note, call, *arguments, **named)

    def ask(self, submit: Callable[P, Pending[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """The same for a request of the controller; its reply."""
        return self.patient(lambda: submit(*arguments, **named).result(REPLY_S))

    def clock(self) -> int:
        """The committed version."""
        reply = self.ask(self.client.watch, wait_s=0.0)
        return reply.directive.versions.get(self.spec.model, 0)

    def read(self, rows: m.Rows, names: tuple[str, ...]) -> list[content.Key]:
        """Read and compare; the keys of the rows. Raises Gone."""
        found: dict[str, Any] = self.patient(self.client.read, rows, names, self.spec)
        for what in content.differences(found):
            self.note(Wrong(what=f"{self.topic}: {what}"))
        return content.keys_in(found)
