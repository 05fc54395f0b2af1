"""Rows and groups as columns of numbers: no object a row. A slot is a place in them; when it is free it is used again under its next generation.

Invariant: nobody keeps a view of a column (they grow in place), and nobody keeps a slot without its generation beyond the life of what it names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from transfer_queue.messages import Record

FIRST = 256  # slots of a new table
STEP = 1 << 16  # most slots that are added at a time: growing costs what is added, for the system moves what is there without copying it
NONE = -1  # no slot
LEFT = -1  # place in a group's `places` of what an attempt handed back
NEVER = np.iinfo(np.int64).max  # a version that is older than none


Where = np.ndarray | slice | int
"""Slots by the cheapest index that names them: an operation by a slice costs a third of one by an array, by a number a tenth. For writing, and for
reading at once: what is read by a slice is a view."""


class FrozenTable(Record, frozen=True):
    """What a snapshot keeps. Freed slots too: which of them is used next is a part of the state."""

    used: int
    vacant: np.ndarray  # [free]
    columns: dict[str, np.ndarray]  # [used, …]

    def slots(self) -> np.ndarray:
        """Those in use, ascending."""
        used = np.ones(self.used, dtype=bool)
        used[self.vacant] = False
        return np.flatnonzero(used)


class FrozenRows(Record, frozen=True):
    """The same of runs of slots."""

    used: int
    vacant: dict[int, list[int]]  # by length of the run
    columns: dict[str, np.ndarray]  # [used, …]

    def slots(self) -> np.ndarray:
        """Of the rows that are there, ascending."""
        return np.flatnonzero(self.columns["there"])


class Columns:
    """Columns of one length. Subclasses make them by `_column`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._capacity = FIRST
        self._used = 0  # slots that were ever given out

    def _column(self, name: str, dtype: Any, *shape: int) -> np.ndarray:
        """[slots, *shape] of zeros."""
        self._names.append(name)
        return np.zeros((self._capacity, *shape), dtype=dtype)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self._names)

    def _fresh(self, count: int) -> int:
        """The first of so many slots that were never used, side by side."""
        begin = self._used
        self._used += count
        if self._used <= self._capacity:
            return begin
        while self._capacity < self._used:
            self._capacity += min(self._capacity, STEP)
        for name in self._names:
            column = getattr(self, name)
            if len(column) < self._capacity:
                column.resize((self._capacity, *column.shape[1:]), refcheck=False)  # realloc: no view is alive, see above
        return begin

    def cover(self, slots: int) -> None:
        """There are at least so many slots: of columns beside a table, whose slots these are. New ones hold zeros."""
        if slots > self._used:
            self._fresh(slots - self._used)

    def _columns(self) -> dict[str, np.ndarray]:
        """A copy of all that was ever given out. What stands in a slot that is free now is a part of the state: a copy of it is the same bits."""
        return {name: getattr(self, name)[: self._used].copy() for name in self._names}

    def _fill(self, used: int, columns: dict[str, np.ndarray]) -> None:
        """A new one with such a copy."""
        self._fresh(used)
        for name, values in columns.items():
            getattr(self, name)[:used] = values


class Table(Columns):
    """Slots one by one."""

    def __init__(self) -> None:
        super().__init__()
        self._free = 0  # slots that were given back: the first ones of `_vacant`
        self._vacant = self._column("_vacant", np.int64)
        self.generation = self._column("generation", np.int64)  # [slots] how often it was freed

    def __len__(self) -> int:
        """Slots in use."""
        return self._used - self._free

    def take(self, count: int) -> np.ndarray:
        """[count] slots, whose columns hold anything."""
        reused = min(count, self._free)
        self._free -= reused
        slots = np.empty(count, dtype=np.int64)
        slots[:reused] = self._vacant[self._free : self._free + reused]
        begin = self._fresh(count - reused)
        slots[reused:] = np.arange(begin, self._used)
        return slots

    def take_one(self) -> int:
        if self._free:
            self._free -= 1
            return int(self._vacant[self._free])
        return self._fresh(1)

    def give_back(self, slots: np.ndarray) -> None:
        """Whoever still names them names nothing any more."""
        self.generation[slots] += 1
        self._vacant[self._free : self._free + len(slots)] = slots
        self._free += len(slots)

    def alive(self, slots: np.ndarray, generations: np.ndarray) -> np.ndarray:
        """[n] bool: whether they still are what they were."""
        return self.generation[slots] == generations

    def slots(self) -> np.ndarray:
        """All that are in use, ascending. It looks at everything."""
        used = np.ones(self._used, dtype=bool)
        used[self._vacant[: self._free]] = False
        return np.flatnonzero(used)

    def freeze(self) -> FrozenTable:
        columns = self._columns()
        del columns["_vacant"]
        return FrozenTable(self._used, self._vacant[: self._free].copy(), columns)

    def thaw(self, frozen: FrozenTable) -> None:
        """Into a new table."""
        self._fill(frozen.used, frozen.columns)
        self._free = len(frozen.vacant)
        self._vacant[: self._free] = frozen.vacant


class RowTable(Columns):
    """Finished trajectory rows of open groups. A group has a run of slots side by side, one for each row that is asked for, so that a row's place in
    the group is its place in the run. R: slots, K: consumers, C: columns that are not shared."""

    def __init__(self, consumers: int, columns: int) -> None:
        super().__init__()
        self._vacant: dict[int, list[int]] = {}  # length of a run, a power of two → first slots of those that were given back
        self.there = self._column("there", np.bool_)  # the other columns hold anything where it is false
        self.group = self._column("group", np.int64)  # slot of its group
        self.index = self._column("index", np.int64)  # place in the group
        self.tokens = self._column("tokens", np.int64)
        self.oldest = self._column("oldest", np.int64)  # version of its oldest token
        self.newest = self._column("newest", np.int64)
        self.missing = self._column("missing", np.int16, consumers)  # required columns not yet there; SERVED once the consumer acknowledged it
        self.queued = self._column("queued", np.bool_, consumers)  # lies in the ready set of a consumer of rows
        self.lease = self._column("lease", np.int64, consumers)  # under which it was last handed out; any number where it never was
        self.places = self._column("places", np.int64, columns, 4)  # NOWHERE where it is not there

    def take(self, count: int, rows: int) -> np.ndarray:
        """[count] first slots of runs for so many rows each, none of them there."""
        length = _run(rows)
        vacant = self._vacant.get(length, [])
        reused = min(count, len(vacant))
        old = vacant[len(vacant) - reused :]
        del vacant[len(vacant) - reused :]
        begin = self._fresh((count - reused) * length)
        return np.concatenate([np.array(old, dtype=np.int64), np.arange(begin, self._used, length)])

    def take_one(self, rows: int) -> int:
        """The first slot of a run for so many rows, none of them there."""
        length = _run(rows)
        vacant = self._vacant.get(length)
        return vacant.pop() if vacant else self._fresh(length)

    def give_back(self, bases: np.ndarray, rows: np.ndarray) -> None:
        """Runs for so many rows each ([n], [n])."""
        if len(bases):
            self.there[spread(bases, rows)[0]] = False
        lengths = set(rows.tolist())
        if len(lengths) == 1:
            self._vacant.setdefault(_run(lengths.pop()), []).extend(bases.tolist())
            return
        for base, wanted in zip(bases.tolist(), rows.tolist(), strict=True):
            self._vacant.setdefault(_run(wanted), []).append(base)

    def slots(self) -> np.ndarray:
        """Of all rows that are there, ascending. It looks at everything."""
        return np.flatnonzero(self.there[: self._used])

    def freeze(self) -> FrozenRows:
        return FrozenRows(self._used, {length: list(bases) for length, bases in self._vacant.items()}, self._columns())

    def thaw(self, frozen: FrozenRows) -> None:
        """Into a new table."""
        self._fill(frozen.used, frozen.columns)
        self._vacant = {length: list(bases) for length, bases in frozen.vacant.items()}


def where(slots: np.ndarray) -> Where:
    """Mostly they lie side by side."""
    if not len(slots):
        return slots
    first = slots.item(0)
    if slots.item(-1) - first + 1 == len(slots) and (slots[1:] > slots[:-1]).all():
        return slice(first, first + len(slots))
    return slots


def _run(rows: int) -> int:
    """Runs have one of a few lengths, or those of one length could never be used for another."""
    return 1 << (rows - 1).bit_length()


def spread(bases: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(slots, for each the number of its run): counts[n] slots from bases[n] on."""
    if len(bases) == 1:
        base, count = int(bases[0]), int(counts[0])
        return np.arange(base, base + count), np.zeros(count, dtype=np.int64)
    if len(counts) and (counts == counts[0]).all():
        count = int(counts[0])
        return (bases[:, None] + np.arange(count)).ravel(), np.arange(len(bases)).repeat(count)
    owners = np.arange(len(bases)).repeat(counts)
    within = np.arange(len(owners)) - (np.cumsum(counts) - counts).repeat(counts)
    return bases[owners] + within, owners


class GroupTable(Table):
    """Open groups. K: consumers, S: shared columns."""

    def __init__(self, consumers: int, shared: int) -> None:
        super().__init__()
        self.gid = self._column("gid", np.int64)
        self.life = self._column("life", np.int64)
        self.state = self._column("state", np.int8)  # place in STATES
        self.since = self._column("since", np.float64)  # entered its state, seconds of the controller's clock
        self.order = self._column("order", np.int64)  # of admission
        self.version = self._column("version", np.int64)  # of the oldest surviving token, else `min_version`
        self.min_version = self._column("min_version", np.int64)
        self.wanted = self._column("wanted", np.int64)  # rows asked for
        self.rows = self._column("rows", np.int64)  # rows there are
        self.base = self._column("base", np.int64)  # first of its rows' slots
        self.oldest = self._column("oldest", np.int64)  # oldest token of its rows; NEVER without any
        self.newest = self._column("newest", np.int64)  # newest token of its rows; 0 without any
        self.tokens = self._column("tokens", np.int64)  # in its rows
        self.left_oldest = self._column("left_oldest", np.int64)  # oldest token of what an attempt handed back; NEVER without any
        self.left_newest = self._column("left_newest", np.int64)  # newest of them; 0 without any
        self.left_epoch = self._column("left_epoch", np.int64)  # of the weights that made the newest of them
        self.attempt_tokens = self._column("attempt_tokens", np.int64)
        self.lapses = self._column("lapses", np.int64)  # attempts that made no progress for `lease_s`
        self.closed = self._column("closed", np.bool_)
        self.given = self._column("given", np.bool_)  # put whole, by no prompt: nothing could make it again
        self.pending = self._column("pending", np.int64, consumers)  # rows that are not ready for it
        self.queued = self._column("queued", np.bool_, consumers)  # lies in the ready set of a consumer of groups
        self.leased = self._column("leased", np.bool_, consumers)  # by terminal consumers
        self.acked = self._column("acked", np.bool_, consumers)  # by terminal consumers that trained it
        self.places = self._column("places", np.int64, shared + 1, 4)  # of its shared columns, then (LEFT) of what an attempt handed back
