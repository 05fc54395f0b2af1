"""One member's stream: leases in, batches out, until nothing will ever come again. It parks at the controller and never polls.

It acknowledges nothing. Whoever reads from it does that, for only he knows when he is through; what he has not acknowledged goes to others when the
generator is closed, by whatever it is: the end, a `break`, an exception, Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from transfer_queue import messages as m
from transfer_queue.codec import Column
from transfer_queue.errors import Gone, QueueError, QueueGone
from transfer_queue.torch_data.batch import Batch, tensors
from transfer_queue.torch_data.membership import Membership
from transfer_queue.torch_data.packing import ByLease, ByTokens, Packing, Unit
from transfer_queue.torch_data.receipts import Ended, Part, Receipt
from transfer_queue.torch_data.settings import Source
from transfer_queue.torch_data.steps import Steps
from transfer_queue.torch_data.view import View

IDLE_S = 30.0  # longest single wait for rows; every wake-up before it is an event
OVER = "the topic is over"


def stream(
    source: Source,
    worker: int,
    workers: int,
    joined: Callable[[int], None] = lambda incarnation: None,
    unwanted: Callable[[], bool] = lambda: False,
) -> Iterator[Batch | Ended]:
    """Worker `worker` of `workers`: a member named after it. The last item is an `Ended`; whoever asks for more waits until the member is ended by
    somebody else (`leave_for`), so that what is still being trained on can be acknowledged.

    `joined` is told the incarnation before anything is taken; `unwanted`: whoever iterated has ended it meanwhile, so that being fenced is no error.
    """
    membership = Membership(source, f"{source.name}-{worker}")
    try:
        joined(membership.client.incarnation)
        if unwanted():
            return
        reader = Reader(source, membership, worker, workers)
        yield from reader.batches()
        yield Ended(worker, reader.ended)
        membership.wait_end()  # what was taken stays ours until whoever iterates is through with it, and lets us leave
    except QueueError as error:
        if error.code != "stale_incarnation":
            raise
        if not unwanted():
            error.add_note(f"if another process has joined as {source.name}-{worker}: loaders that are open at once need names of their own, name=…")
            raise
    finally:
        membership.close()


class Reader:
    def __init__(self, source: Source, membership: Membership, worker: int, workers: int) -> None:
        self.ended = ""  # why, once `batches` has ended
        self._source, self._membership, self._client = source, membership, membership.client
        self._view = View(source, self._client.topic(source.topic))
        self._packing = self._make_packing()
        self._steps = Steps(source, self._view.spec, worker, workers) if self._view.consumer.terminal else None
        self._registration: m.OkRegistered | None = self._client.registration
        self._bare: list[Part] = []  # ends of leases whose last rows were gone: they go with the next batch

    def _make_packing(self) -> Packing:
        if self._source.max_tokens is None:
            return ByLease()
        return ByTokens(self._source.max_tokens, self._view.tokens, self._view.consumer.unit == "group")

    def batches(self) -> Iterator[Batch]:
        try:
            while not (taken := self._take()).done:
                if taken.lease >= 0:
                    self._packing.add(taken.lease, taken.rows)
                while units := self._packing.next(rest=taken.lease < 0):
                    batch = self._read(units, taken)
                    if batch is not None:
                        yield batch
            self.ended = self._reason()
        except QueueGone:
            stopped = self._membership.stop_reason
            if stopped is None:  # a controller that was killed is no end of the data
                raise
            self.ended = stopped

    # ------------------------------------------------------------ leases

    def _take(self) -> m.OkTaken:
        """Rows, or none: then nothing came in time, or the step went on. While rows wait for more, only what is there already."""
        self._membership.check()
        source, steps = self._source, self._steps
        wait_s = 0.0 if self._packing.waiting else IDLE_S
        limit = source.limit if steps is None else min(source.limit, steps.room(self._membership))
        step = None if steps is None else steps.number
        pending = self._client.take(source.topic, source.consumer, limit, min(source.at_least, limit), step=step, wait_s=wait_s)
        taken = pending.result(wait_s + source.timeout_s)
        if steps is not None:
            steps.note(taken)
        return taken

    def _reason(self) -> str:
        """`done` says that nothing will come, not why."""
        directive = self._client.watch(wait_s=0.0).result(self._source.timeout_s).directive
        return directive.reason if directive.state == "stop" else OVER

    # ------------------------------------------------------------ rows

    def _read(self, units: list[Unit], taken: m.OkTaken) -> Batch | None:
        """None: all of the rows ended (dropped, or trained by others) after they were leased."""
        columns: dict[str, Column] | None = None
        while columns is None:
            rows = _together(units)
            if not len(rows):
                break
            try:
                columns = self._client.read(rows, list(self._view.columns), self._view.spec, writable=self._source.writable)
            except Gone as gone:
                units = [_without(unit, set(gone.gids)) for unit in units]
        parts = [*self._bare, *(Part(unit.lease, len(unit.rows), unit.last) for unit in units)]
        if columns is None:
            self._bare = [part for part in parts if part.last]
            return None
        self._bare = []
        present = [m.places(buffer)[:, 0] >= 0 for buffer in rows.columns]  # aligned with the columns
        found = {name: tensors(self._view.columns[name], columns[name], there) for name, there in zip(columns, present, strict=True)}
        return Batch(found, self._receipt(rows, parts, taken))

    def _receipt(self, rows: m.Rows, parts: list[Part], taken: m.OkTaken) -> Receipt:
        gids, places, oldest, newest = (m.unpacked(field).copy() for field in (rows.gids, rows.rows, rows.oldest, rows.newest))
        registration, self._registration = self._registration, None
        who = self._client.member, self._client.incarnation
        return Receipt(*who, gids, places, oldest, newest, tuple(parts), taken.version, taken.batch, registration)


def _together(units: list[Unit]) -> m.Rows:
    if len(units) == 1 and isinstance(units[0].rows, m.Rows):  # a whole lease, as it came
        return units[0].rows
    return m.Rows.of([ref for unit in units for ref in unit.rows])


def _without(unit: Unit, gids: set[int]) -> Unit:
    return Unit(unit.lease, [ref for ref in unit.rows if ref.gid not in gids], unit.last, unit.tokens)
