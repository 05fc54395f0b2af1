"""A worker's link to the run: heartbeats out, desired state in. Nothing is called on a worker; it reads the directive and reconciles."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from asyncflow.contracts.weights import WeightsId
from asyncflow.workers.clock import ActivityClock
from asyncflow.workers.recording import Recording
from asyncflow.workers.wake import Wake
from transfer_queue.client import Pending, QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.messages import Directive, OkDirective

WATCH_S = 1.0  # a heartbeat at least this often; changes of the directive arrive at once
TRACE_S = 0.5  # what the worker recorded travels with a heartbeat at most this often
LAST_S = 2.0  # deadline of the last one, which carries what was recorded since the one before


class ControllerLost(RuntimeError):
    """The controller did not answer by the deadline: there is no run to work for."""


EXPULSIONS = ("stale_incarnation", "stale_owner")  # how the controller says it, and a shard: whoever is asked first


def is_expelled(error: BaseException) -> bool:
    """Whether the controller counts this incarnation as dead (its heartbeat came too late): its leases are others' by now, and a new one may join."""
    return isinstance(error, QueueError) and error.code in EXPULSIONS


class ControlLink:
    """Keeps `directive` current in a thread of its own, so that a long computation does not stop the heartbeat.

    `wake` is set whenever the directive changed, this worker was asked to stop, or the link broke (`check` then raises).
    """

    def __init__(self, client: QueueClient, wake: Wake, clock: ActivityClock, recording: Recording, deadline_s: float) -> None:
        self._client = client.attach()
        self._wake, self._clock, self._recording, self._deadline_s = wake, clock, recording, deadline_s
        self._comeback_s = client.registration.comeback_s  # a controller that is gone has so long to be back
        self._poke = Wake()
        self._loaded: dict[str, WeightsId] = {}  # by model
        self._endpoints: dict[str, str] = {}
        self._gauges: Callable[[], dict[str, float]] = dict
        self._lock = threading.Lock()
        self._duty_done: str | None = None
        self._duty_unconfirmed = False
        self._cancelled: list[tuple[int, int]] = []  # told, and not yet taken by the worker's loop
        self._error: BaseException | None = None
        self._closing = False
        self.stop_requested = False  # SIGTERM: this worker alone leaves
        self.directive: Directive = self._first()
        self._cancelled += self.directive.cancelled
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def _first(self) -> Directive:
        return self._client.watch(seen=-1, wait_s=0.0).result(self._deadline_s + self._comeback_s).directive

    @property
    def stopping(self) -> bool:
        return self.stop_requested or self.directive.state == "stop"

    @property
    def accepting(self) -> bool:
        """Whether new work may be taken."""
        return not self.stop_requested and self.directive.state == "run"

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def request_stop(self) -> None:
        self.stop_requested = True
        self._wake.set()

    def report_loaded(self, model: str, weights: WeightsId) -> None:
        """Tell the controller now which weights this worker computes with."""
        self._loaded = {**self._loaded, model: weights}
        self._poke.set()

    def announce(self, endpoints: dict[str, str]) -> None:
        """Tell the controller what this worker serves; everybody finds it in the directive."""
        self._endpoints = {**self._endpoints, **endpoints}
        self._poke.set()

    def report_gauges(self, gauges: Callable[[], dict[str, float]]) -> None:
        """Extra numbers (cumulative or level) that travel with each heartbeat beside the activity clock."""
        self._gauges = gauges

    @property
    def duty(self) -> str | None:
        """What this worker is marked to do now. None from `duty_done` until the controller has heard of it, so that no duty is done twice."""
        with self._lock:
            return None if self._duty_unconfirmed else self.directive.duty

    def duty_done(self, duty: str) -> None:
        with self._lock:
            self._duty_done, self._duty_unconfirmed = duty, True
        self._poke.set()

    def take_cancelled(self) -> list[tuple[int, int]]:
        """Attempts (gid, fence) that the controller ended since the last call. A directive names them only until it was seen, and the heartbeat sees
        many while the loop computes: so they are kept here."""
        with self._lock:
            cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def close(self) -> None:
        self._closing = True
        self._poke.set()
        self._thread.join(timeout=5.0)
        if self._error is None and not self._thread.is_alive():
            self._send_last()
        self._client.close()
        self._poke.close()

    def _send_last(self) -> None:
        """What this worker did since its last heartbeat. Best effort: the run goes on, or ends, without knowing it."""
        with contextlib.suppress(QueueError, OSError):
            self._watch(None, self._recording.take(), wait_s=0.0).result(LAST_S)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._beat()
        except Exception as error:  # carried to the worker's loop, whatever it is: without heartbeats this worker is as good as dead
            if not self._closing:
                self._error = self._explained(error)
                self._wake.set()

    def _explained(self, error: Exception) -> BaseException:
        if is_expelled(error) or not isinstance(error, QueueError | OSError):
            return error
        lost = ControllerLost(f"controller: no directive within {self._deadline_s:g} s ({error}); this worker ends")
        lost.__cause__ = error
        return lost

    def _watch(self, duty_done: str | None, trace: bytes, wait_s: float) -> Pending[OkDirective]:
        return self._client.watch(
            seen=self.directive.revision,
            loaded={model: weights.version for model, weights in self._loaded.items()},
            epochs={model: weights.epoch for model, weights in self._loaded.items()},
            busy={**self._clock.totals(), **self._gauges()},
            duty_done=duty_done,
            endpoints=self._endpoints,
            wait_s=wait_s,
            trace=trace,
        )

    def _beat(self) -> None:
        self._poke.clear()
        with self._lock:
            done, self._duty_done = self._duty_done, None
        pending = self._watch(done, self._recording.take(TRACE_S), wait_s=WATCH_S)
        patient_until = time.monotonic() + WATCH_S + 2 * self._deadline_s + self._comeback_s  # the same whether we are poked or not
        self._client.poll(WATCH_S + self._deadline_s, self._poke)
        if not pending.done():
            pending.cancel()  # poked: there is news for the controller, or nothing came at all (then `result` raises)
        directive = pending.result(patient_until - time.monotonic()).directive
        with self._lock:
            changed = directive.revision != self.directive.revision
            self.directive = directive
            self._cancelled += directive.cancelled
            if done is not None:
                self._duty_unconfirmed = False
        if changed or done is not None:
            self._wake.set()
