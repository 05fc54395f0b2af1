"""A follower of a publisher: weights arrive into the local host cache on a thread of their own, whole and verified, while compute goes on.

Desired state in, facts out: `want` says what should be here, `on_ready` and `latest` say what is. Versions coalesce to the newest; the label is
always that of what arrived. Any transfer that fails is repeated by pull, with growing pauses; what an engine has loaded goes on serving meanwhile,
and with a spare slot stays loadable as well.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import zmq

from checkpoint_engine import messages as m
from checkpoint_engine.backends import CPU, check_setting, own_device
from checkpoint_engine.cache import HostCache
from checkpoint_engine.collective import import_torch
from checkpoint_engine.digest import DigestMismatch
from checkpoint_engine.link import Link
from checkpoint_engine.loan import Loan
from checkpoint_engine.manifest import ManifestError
from checkpoint_engine.pull import LEASE_S as LEASE_OF_LOAN_S
from checkpoint_engine.pull import PullFailed, pull_newest
from checkpoint_engine.seat import Seat, SeatLost
from checkpoint_engine.slot import Lease
from checkpoint_engine.wakeup import Wakeup
from checkpoint_engine.weights_id import WeightsId
from checkpoint_engine.wire import Secure

SIGN_OF_LIFE_S = 1.0
GRACE_S = 0.3
"""A member of a group leaves a wanted version this long to the broadcast before it pulls."""
_PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
LEASE_S = 30.0


class NoRoom(RuntimeError):
    """The system gave no memory, or no descriptor, for a version. It is tried again."""


class NotInCache(LookupError):
    """This version is not here (any more): take `latest()`."""


@dataclass
class Counters:
    """What happened so far, by kind."""

    by_broadcast: int = 0
    by_pull_shared: int = 0  # mapped: the bytes stayed where the publisher has them
    by_pull_bytes: int = 0
    failed: int = 0  # transfers that were cut off
    corrupt: int = 0  # transfers whose digests were wrong
    drained: int = 0  # broadcasts taken part in without keeping the bytes
    lapsed: int = 0  # mapped versions whose lease the publisher ended first (stopped too long); their bytes stayed whole
    receive_s: float = 0.0  # of the last version


class Receiver:
    """Starts receiving at once. `member`: this process's name, unique per incarnation (death notices carry it).

    `on_ready(weights)` after a version became loadable, `on_error(error)` for every failed transfer and for what ends the thread, `on_transfer`
    when one begins (True) and is over (False): all run on the receiver's thread. `collective` False: pull only. `backend`: the publisher's setting;
    nccl or hccl start the device of this process if it does not compute on it yet. Where there is none it pulls, and `pulls_because` says so. Any
    thread may call the methods.

    `spare`: slots beside the one that is served. With 0 one model is in the memory of this process, beside the loaded one: a version whose bytes come
    here is written over the one before, once that was read, and meanwhile nothing can be read (`HostCache.await_lease` waits). One that nobody has
    read yet is not written over: the broadcast of the next goes by, and it is pulled when the reader is through. What is mapped is only replaced when
    the next one is verified.
    """

    def __init__(
        self,
        member: str,
        endpoint: str,
        secure: Secure | None = None,
        on_ready: Callable[[WeightsId], None] = lambda weights: None,
        on_error: Callable[[Exception], None] = lambda error: None,
        on_transfer: Callable[[bool], None] = lambda receiving: None,
        spare: int = 0,
        collective: bool = True,
        backend: str = "auto",
    ) -> None:
        self.member = member
        self.counters = Counters()
        self._collective, self._backend = collective, check_setting(backend)
        self.pulls_because = ""
        if collective:
            import_torch()
            self._look_for_device()
        self._on_ready, self._on_error, self._on_transfer = on_ready, on_error, on_transfer
        self._cache = HostCache(spare)
        self._closing = threading.Event()
        self._wakeup = Wakeup()
        self._link = Link(endpoint, secure, self._closing.is_set)
        self._seat = Seat(self._link, member, self._cache)
        self._returns: deque[tuple[Loan, bool]] = deque()  # from any thread, to be told the publisher: (loan, tainted)
        self._lapsed: set[int] = set()  # numbers of loans that the publisher holds no memory for any more
        self._lock = threading.Lock()  # of the next three: `want` comes from any thread
        self._wanted: WeightsId | None = None  # the newest version anybody said there is
        self._pull_at = 0.0  # monotonic; not before
        self._failures = 0
        self._sign_at = 0.0
        self._newest: WeightsId | None = None  # that was ever complete here: nothing older comes after it, also into an empty slot
        self.failure: Exception | None = None  # what ended the thread
        self._thread = threading.Thread(target=self._run, name=f"receiver-{member}", daemon=True)
        self._thread.start()

    def _look_for_device(self) -> None:
        """A group cannot have a member without: such a one follows as joiners do."""
        try:
            own_device(self._backend)
        except ValueError as error:
            self._collective, self.pulls_because = False, str(error)

    # -------------------------------------------------------------- for the owner

    def latest(self) -> WeightsId | None:
        """The newest version that can be loaded."""
        return self._cache.latest()

    def want(self, weights: WeightsId) -> None:
        """Make sure that this version or a newer one arrives. Raises RuntimeError when the receiver's thread has ended."""
        if self.failure is not None:
            raise RuntimeError(f"{self.member} receives no weights any more: {self.failure}") from self.failure
        self._note(weights, GRACE_S if self._seat.taken else 0.0)
        self._wakeup.set()

    @contextlib.contextmanager
    def get_weights(self, weights: WeightsId | None = None, lease_s: float = LEASE_S) -> Iterator[Lease]:
        """Hold a version (None: the newest, without a race against the next one) while it is loaded: an iterable of (name, view into the cache)
        whose `weights` is the label. Views are read-only and end with the context; one of a slot that is mapped from the publisher ends the process
        if it is written to (see `slot.py`). Past `lease_s` seconds the slot gets other memory; what is read here stays intact. Raises NotInCache.
        """
        lease = self._cache.lease(self.member, lease_s, weights)
        if lease is None:
            raise NotInCache(f"{weights or 'any version'} is not in the cache of {self.member} (newest: {self.latest()}); load latest()")
        try:
            yield lease
        finally:
            self._cache.release(lease)
            self._pull_soon()  # a version may have waited for this slot

    def close(self) -> None:
        """Leave and stop. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wakeup.set()
        self._thread.join()
        self._wakeup.close()
        self._cache.close()

    # -------------------------------------------------------------- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._link.socket, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        try:
            while not self._closing.is_set():
                self._give_back()
                self._give_sign_of_life()
                self._pull_if_due()
                ready = dict(poller.poll(int(self._patience_s() * 1e3) + 1))
                if self._wakeup.fileno() in ready:
                    self._wakeup.clear()
                for record in self._link.announcements():
                    self._handle(record)
            self._cache.close()
            self._give_back()  # what is still read here stays lent, and the publisher gives that memory up
            self._link.ask(m.Leave(member=self.member))
        except Exception as error:  # the thread's last words: the owner must hear of whatever ended it
            self.failure = error
            self._on_error(error)
        finally:
            self._seat.close()
            self._link.close()

    def _handle(self, record: m.AnyFromPublisher) -> None:
        match record:
            case m.Available():
                if record.weights is not None:
                    broadcast_may_come = record.seq != 0 and self._seat.taken  # the answer to a sign of life, not a call to pull
                    self._note(record.weights, GRACE_S if broadcast_may_come else 0.0)
            case m.Invite():
                self._seat.invited(record)
            case m.Form():
                self._trying(lambda: self._seat.take(record))
            case m.Abandon():
                self._seat.abandoned(record)
            case m.Send():
                self._transferring(lambda: self._receive(record))
            case m.Lapsed():
                self._lapse(record.lease)
            case m.Refused():
                self._on_error(PullFailed(f"the publisher refused something of {self.member} ({record.code}): {record.message}"))

    def _receive(self, record: m.Send) -> None:
        began = time.monotonic()
        self._note(record.manifest.weights, GRACE_S)
        if self._seat.receive(record, self._is_news):
            self.counters.by_broadcast += 1
            self._arrived(record.manifest.weights, began)
        else:
            self.counters.drained += 1

    def _pull_if_due(self) -> None:
        if self._missing() and time.monotonic() >= self._pull_at:
            self._transferring(self._pull)

    def _pull(self) -> None:
        began = time.monotonic()
        got = pull_newest(self._link, self.member, self._cache, self._is_news, self._note_return)
        if isinstance(got, str):  # not there yet, or no slot: a lease that ends wakes this thread
            with self._lock:
                self._pull_at = time.monotonic() + _PAUSES_S[3]
            return
        weights, path = got
        self.counters.by_pull_shared += path == "shared"
        self.counters.by_pull_bytes += path == "bytes"
        self._arrived(weights, began)

    def _is_news(self, weights: WeightsId) -> bool:
        """Newer than what is here; where nothing is, because something else was to take its place, as new as what was."""
        have = self.latest()
        if have is not None:
            return have < weights
        return self._newest is None or not weights < self._newest

    def _arrived(self, weights: WeightsId, began: float) -> None:
        self._newest = weights
        with self._lock:
            self._failures = 0
        self.counters.receive_s = time.monotonic() - began
        self._on_ready(weights)

    def _transferring(self, step: Callable[[], None]) -> None:
        self._on_transfer(True)
        self._trying(step)
        self._on_transfer(False)

    def _trying(self, step: Callable[[], None]) -> None:
        """Run a transfer; what goes wrong is counted, reported, and repeated by pull after a pause. The old version keeps serving."""
        try:
            step()
        except (PullFailed, SeatLost, ManifestError, DigestMismatch) as error:
            self._failed(error)
        except OSError as error:  # ENOMEM, EMFILE and the like: what is short now may be there at the next attempt
            problem = f"{self.member} has no room for {self._wanted}: {error}"
            self._failed(NoRoom(f"{problem}; it tries again. Give its process more memory, or descriptors"))

    def _failed(self, error: Exception) -> None:
        self.counters.corrupt += isinstance(error, DigestMismatch)
        self.counters.failed += not isinstance(error, DigestMismatch)
        with self._lock:
            self._pull_at = time.monotonic() + _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._failures += 1
        if not self._closing.is_set():
            self._on_error(error)

    def _note(self, weights: WeightsId, grace_s: float) -> None:
        """There is such a version. The first word of it decides how long a broadcast may take to bring it."""
        with self._lock:
            if self._wanted is None or self._wanted < weights:
                self._wanted = weights
                self._pull_at = time.monotonic() + grace_s
            elif grace_s == 0.0 and self._failures == 0:
                self._pull_at = 0.0

    def _pull_soon(self) -> None:
        with self._lock:
            if self._failures == 0 and self._pull_at > 0.0:
                self._pull_at = min(self._pull_at, time.monotonic())
        self._wakeup.set()

    def _note_return(self, loan: Loan, tainted: bool) -> None:
        """Of the cache, on any thread, under its lock."""
        self._returns.append((loan, tainted))
        self._wakeup.set()

    def _give_back(self) -> None:
        while self._returns:
            loan, tainted = self._returns.popleft()
            self._lapsed.discard(loan.number)
            self._link.ask(m.Release(lease=loan.number, tainted=tainted))

    def _renew(self) -> None:
        """Each second, so that a stopped process loses them. What is kept beside a newer version gives way at the publisher when it does here."""
        for loan, needed_s in self._cache.loans():
            if loan.number not in self._lapsed:
                self._link.ask(m.Renew(lease=loan.number, lease_s=min(max(needed_s, 0.0), LEASE_OF_LOAN_S)))

    def _lapse(self, number: int) -> None:
        needed_s = {loan.number: needed_s for loan, needed_s in self._cache.loans()}
        self.counters.lapsed += needed_s.get(number, 1.0) > 0.0
        self._lapsed |= needed_s.keys() & {number}

    def _missing(self) -> bool:
        have = self._cache.latest()
        return self._wanted is not None and (have is None or have < self._wanted)

    def _give_sign_of_life(self) -> None:
        now = time.monotonic()
        if now >= self._sign_at:
            self._sign_at = now + SIGN_OF_LIFE_S
            device = own_device(self._backend) if self._collective else CPU  # an engine may have started it since
            self._link.ask(m.Join(member=self.member, collective=self._collective, have=self.latest(), device=device))
            self._renew()

    def _patience_s(self) -> float:
        if self._link.waiting:
            return 0.0
        until = min(self._sign_at, self._pull_at) if self._missing() else self._sign_at
        return max(until - time.monotonic(), 0.0)
