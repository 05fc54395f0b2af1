"""A DataLoader over a QueueDataset that knows when you are through with a batch: when you ask for the next one, or when you say so.

Worker processes take, read, and do whatever `collate_fn` does; the process that iterates acknowledges and commits. So rows that a DataLoader has
fetched ahead, or that you were at when you died, go to others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from transfer_queue import messages as m
from transfer_queue.errors import QueueGone
from transfer_queue.torch_data.acknowledging import Acknowledger
from transfer_queue.torch_data.batch import Batch
from transfer_queue.torch_data.dataset import QueueDataset
from transfer_queue.torch_data.membership import END_S, leave_for, report_dead
from transfer_queue.torch_data.reader import stream
from transfer_queue.torch_data.receipts import Ended, Receipt
from transfer_queue.torch_data.roster import Roster
from transfer_queue.torch_data.settings import Source
from transfer_queue.torch_data.steps import OpenStep

OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order")


class Handed(NamedTuple):
    """What comes out of a worker; torch pins the parts of a named tuple."""

    receipt: Receipt
    data: Any


class QueueLoader(DataLoader[Any]):
    def __init__(self, dataset: QueueDataset, *, collate_fn: Callable[[Batch], Any] | None = None, **options: Any) -> None:
        """`collate_fn` is called with each Batch, in the worker process; what it returns is yielded instead. `options` are DataLoader's: num_workers,
        pin_memory, prefetch_factor, persistent_workers, multiprocessing_context, timeout, worker_init_fn, generator.

        Batches come in the order in which they are ready. Raises TypeError for an option that is the dataset's to decide.
        """
        wrong = sorted(set(options) & set(OURS))
        if wrong:
            raise TypeError(f"{wrong}: a stream has no order to sample from, and its batches are made by QueueDataset(limit=…, max_tokens=…)")
        self.ended: str | None = None  # why the last iteration ended; None: it did not come to the end
        self._source = dataset.source
        self._roster = Roster(max(1, options.get("num_workers", 0)))
        self._step = OpenStep(dataset.source.share)
        self._last: Receipt | None = None  # of the batch that you are at
        self._acknowledger = Acknowledger(dataset.source)
        self._inner: Any = None  # torch's iterator of the present iteration
        self._running: Callable[[], Generator[Any, None, None] | None] = lambda: None
        collate: Callable[[Any], Any] = _Collate(collate_fn)
        super().__init__(_Stream(dataset.source, self._roster), batch_size=None, collate_fn=collate, in_order=False, **options)
        weakref.finalize(self, _end_left, os.getpid(), self._source, self._roster)  # also at the interpreter's end, which closes no generator

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch says which class of its own it returns
        """Batches until nothing will ever come again. An iteration that is begun ends the one before."""
        self._end_running()
        generator = self._iterate()
        self._running = weakref.ref(generator)
        return generator

    # ------------------------------------------------------------ what you say

    def acknowledge(self) -> None:
        """You are through with the last batch; to be called before you leave the loop early. Asking for the next batch says the same."""
        self._acknowledger.through()

    def write_back(self, columns: Mapping[str, Any], weights: m.ModelVersion | None = None) -> list[int]:
        """Outputs of the last batch, rows in its order, for a consumer that has some: its acknowledgement. Returns the gids that came too late."""
        return self._acknowledger.write_back(columns, weights)

    def commit(
        self, info: dict[str, float] | None = None, *, epoch: int = 0, leases: list[int] | None = None, model: str | None = None
    ) -> m.OkCommitted:
        """Terminal consumers: the step is trained. `leases`: those of all ranks, where several share it; each of them may commit, once counts.

        Raises RuntimeError when nothing of a step has come, QueueError when the batch is not complete or a worker of it has died.
        """
        receipt, number = self._last, self._step.number
        if receipt is None or number is None:
            raise RuntimeError(
                "commit: nothing of a step has come since the last one, or the loop was left, which gave its rows back; commit inside the loop"
            )
        client = self._acknowledger.client(receipt)
        wanted = client.topic(self._source.topic).model if model is None else model
        named = self._step.leases if leases is None else leases
        committed = client.commit(self._source.topic, self._source.consumer, wanted, epoch, number, named, info).result(self._source.timeout_s)
        self._step.forget()
        return committed

    @property
    def step(self) -> int | None:
        """Terminal consumers: what the batches since the last commit belong to; None before the first of them."""
        return self._step.number

    @property
    def step_complete(self) -> bool:
        """Terminal consumers: the whole step has come, or this rank's share of it."""
        return self._step.complete

    @property
    def leases(self) -> list[int]:
        """Terminal consumers: what a commit of the step has to name."""
        return list(self._step.leases)

    @property
    def refused(self) -> int:
        """Rows whose acknowledgement came too late: their lease ran out, or their worker or their group had ended. Some of them came twice."""
        return self._acknowledger.refused

    def close(self) -> None:
        """End what is running, worker processes that persist included."""
        self._end_running()
        self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------ inside

    def _end_running(self) -> None:
        running = self._running()
        if running is not None:
            running.close()

    def _iterate(self) -> Generator[Any, None, None]:
        self.ended = None
        self._drop_dead()
        self._roster.begin()
        with contextlib.ExitStack() as ending:  # all of it, whatever goes wrong on the way: torch raises the death of a worker wherever we are
            ending.callback(self._let_go)
            ending.push(self._end_processes)
            ending.push(self._end_members)
            self._inner = super().__iter__()  # raises where a worker that persists has just died
            self.ended = yield from self._until_all_ended(self._inner)

    def _end_members(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A worker that is parked comes back at once, and so do the rows of a killed one."""
        self._roster.end()
        if isinstance(error, QueueGone):  # nobody is there to be told
            return
        raised = isinstance(error, Exception)  # else it was left
        _let_leave(self._source, self._roster, f"the iteration over its loader raised {type(error).__name__}: {error}" if raised else None)

    def _end_processes(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Those that persist are kept unless something went wrong: torch waits for a dead one at every later iteration, and fails."""
        inner, self._inner = self._inner, None
        failed = kind is not None and kind is not GeneratorExit
        if self.num_workers and inner is not None and (failed or not self.persistent_workers):
            # by name, as Lightning does: an exception keeps the iterator, and where the garbage collector ends it its queues are gone before it
            inner._shutdown_workers()
        if failed:
            self._iterator = None

    def _drop_dead(self) -> None:
        """Workers that persist and died between two iterations (Ctrl-C in a terminal reaches all processes) are started anew."""
        kept: Any = self._iterator
        if kept is not None and not all(process.is_alive() for process in kept._workers):
            kept._shutdown_workers()
            self._iterator = None

    def _let_go(self) -> None:
        self._acknowledger.close()
        self._step.forget()
        self._last = None

    def _until_all_ended(self, inner: Iterator[Handed | Ended]) -> Generator[Any, None, str]:
        """Returns why they did. It asks for no more than the last `Ended`: a worker that has said so stays a member until we are through."""
        at_work = max(1, self.num_workers)
        while True:
            handed = next(inner)
            if isinstance(handed, Ended):
                at_work -= 1
                if not at_work:
                    return handed.reason
                continue
            self._take_in(handed.receipt)
            yield handed.data
            del handed  # its memory goes when you let go of it, not with the next batch
            self._before_next()

    def _take_in(self, receipt: Receipt) -> None:
        self._last = receipt
        self._acknowledger.handed(receipt)
        if receipt.groups:
            self._step.add(receipt)

    def _before_next(self) -> None:
        if self._source.share is None and self._step.complete:
            raise RuntimeError(
                f"step {self.step} of {self._source.consumer!r} is complete and not committed: nothing else is handed out before, so the next batch "
                "would be waited for for ever; call commit() when step_complete says so"
            )
        self._acknowledger.through()


class _Stream(IterableDataset[Any]):
    """The worker's side."""

    def __init__(self, source: Source, roster: Roster) -> None:
        self._source, self._roster = source, roster

    def __iter__(self) -> Iterator[Batch | Ended]:
        turn = self._roster.turn  # now, and not when the first batch is asked for: by then the turn may be over
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return stream(self._source, worker, workers, functools.partial(self._roster.joined, worker), functools.partial(self._roster.is_over, turn))


class _Collate:
    def __init__(self, collate_fn: Callable[[Batch], Any] | None) -> None:
        self._collate_fn = collate_fn

    def __call__(self, item: Batch | Ended) -> Handed | Ended:
        if isinstance(item, Ended):
            return item
        return Handed(item.receipt, item if self._collate_fn is None else self._collate_fn(item))


def _end_left(process: int, source: Source, roster: Roster) -> None:
    """What an iteration that nobody closed has left at work."""
    if os.getpid() == process and not roster.is_over(roster.turn):
        roster.end()
        _let_leave(source, roster, None)


def _let_leave(source: Source, roster: Roster, cause: str | None) -> None:
    members = {f"{source.name}-{worker}": incarnation for worker, incarnation in roster.incarnations().items()}
    if cause is None:
        leave_for(source, members, END_S)
    else:
        report_dead(source, members, cause, END_S)
