"""The rows of one partition: keys in the order in which they were made, their numbers and tags, and columns as they come.

A key has a slot, a place in every table. Numbers ascend with the order of keys, for each is given when its key is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from transfer_queue.controller.blocks import Blocks
from transfer_queue.controller.keyed.cells import LOST, NOTHING, Cells
from transfer_queue.controller.keyed.taking import Names, Ready, Task
from transfer_queue.controller.tables import NONE, Table
from transfer_queue.messages import Cells as Message
from transfer_queue.messages import PartitionStatus

FEW_SLOTS, SPARSE = 4096, 4  # a partition with more slots than these, and than so many a key, is packed


class Slots(Table):
    def __init__(self) -> None:
        super().__init__()
        self.number = self._column("number", np.int64)  # [slots]

    @property
    def used(self) -> int:
        """Slots that were ever given out."""
        return self._used


class Partition:
    def __init__(self, name: str, blocks: Blocks) -> None:
        self.name = name
        self.blocks = blocks
        self.slots: dict[str, int] = {}  # by key, in the order in which they were made
        self.columns: dict[str, Cells] = {}  # those that some key has
        self.tasks: dict[str, Task] = {}  # what each has had
        self.table = Slots()
        self.keys: list[str] = []  # by slot
        self.tags: list[bytes] = []  # by slot
        self.tag_bytes = 0  # of all
        self._by_number: dict[int, int] = {}  # number → slot

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def nbytes(self) -> int:
        """Of all cells; what was overwritten in a block that is still in use is not counted."""
        return sum(cells.nbytes_named for cells in self.columns.values())

    def status(self) -> PartitionStatus:
        tasks = {name: len(task) for name, task in self.tasks.items()}
        return PartitionStatus(self.name, len(self), len(self.columns), self.nbytes, tasks)

    # ------------------------------------------------------------ rows

    def of_keys(self, keys: Sequence[str]) -> np.ndarray:
        """[R] slots, NONE for what is not there."""
        return np.array([self.slots.get(key, NONE) for key in keys], dtype=np.int64)

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """The same."""
        return np.array([self._by_number.get(number, NONE) for number in numbers.tolist()], dtype=np.int64)

    def make(self, keys: Sequence[str], numbers: np.ndarray) -> np.ndarray:
        """Slots of new keys, unlike one another; numbers [n] ascend behind those before."""
        slots = self.table.take(len(keys))
        self.table.number[slots] = numbers
        self.keys += [""] * (self.table.used - len(self.keys))
        self.tags += [b""] * (self.table.used - len(self.tags))
        for key, slot, number in zip(keys, slots.tolist(), numbers.tolist(), strict=True):
            self.slots[key] = self._by_number[number] = slot
            self.keys[slot], self.tags[slot] = key, b""
        for cells in (*self.columns.values(), *self.tasks.values()):
            cells.cover(self.table.used)
        return slots

    def restore(self, keys: Sequence[str], numbers: np.ndarray, tags: Sequence[bytes]) -> np.ndarray:
        """The rows of a new one."""
        slots = self.make(keys, numbers)
        self.tag(tags, slots)
        return slots

    def tag(self, tags: Sequence[bytes], slots: np.ndarray) -> None:
        """In place of those before."""
        for slot, tag in zip(slots.tolist(), tags, strict=True):
            self.tag_bytes += len(tag) - len(self.tags[slot])
            self.tags[slot] = tag

    def clear(self, slots: np.ndarray) -> None:
        """They go, with everything; each is named once."""
        for task in self.tasks.values():
            task.clear(slots, self.table.number[slots])
        places = [cells.take(slots) for cells in self.columns.values()]
        if places:
            self.blocks.release(np.concatenate(places))
        self._drop_empty()
        for slot, number in zip(slots.tolist(), self.table.number[slots].tolist(), strict=True):
            del self.slots[self.keys[slot]], self._by_number[number]
            self.tag_bytes -= len(self.tags[slot])
            self.keys[slot], self.tags[slot] = "", b""
        self.table.give_back(slots)
        if self.table.used > max(FEW_SLOTS, SPARSE * len(self)):
            self._pack()

    def _pack(self) -> None:
        """Slots of keys that went are given back: every column has room for all, used or not."""
        slots = self.all()
        numbers, tags, keys = self.table.number[slots], [self.tags[slot] for slot in slots.tolist()], [*self.slots]
        columns, tasks = self.columns, self.tasks
        self.slots, self.columns, self.tasks, self.table, self.keys, self.tags, self._by_number, self.tag_bytes = {}, {}, {}, Slots(), [], [], {}, 0
        packed = self.restore(keys, numbers, tags)
        for name, old in columns.items():
            cells = self.columns[name] = Cells()
            cells.cover(self.table.used)
            cells.restore(packed, old.types, old.type[slots], old.places[slots])
        for name, task in tasks.items():
            self.restore_task(name, task.sets, packed[task.had[slots]])

    def _drop_empty(self) -> None:
        for name in [name for name, cells in self.columns.items() if not cells.count]:
            del self.columns[name]

    # ------------------------------------------------------------ cells

    def write(self, slots: np.ndarray, columns: dict[str, tuple[Message, np.ndarray]], rows: np.ndarray) -> None:
        """By column, the message's cells and all their places; those of `rows` go into `slots`, [n] each."""
        if not columns or not len(rows):
            return
        if len(rows) == 1:
            self._write_row(slots.item(0), columns, rows.item(0))
            return
        old = []
        self.blocks.hold(np.stack([table[rows] for _, table in columns.values()], axis=1))  # before anything is released: it may be the same block
        for name, (cells, table) in columns.items():
            old.append(self._column(name).write(slots, table[rows], cells, rows))
        self.blocks.release(np.concatenate(old))

    def _write_row(self, slot: int, columns: dict[str, tuple[Message, np.ndarray]], row: int) -> None:
        """The same of one row, which writers put most often: operations on arrays of one would cost several times as much."""
        self.blocks.hold_row([table[row : row + 1] for _, table in columns.values()])
        old = [self._column(name).write_one(slot, table[row].tolist(), cells, row) for name, (cells, table) in columns.items()]
        if replaced := [place for place in old if place is not None]:
            self.blocks.release(np.array(replaced, dtype=np.int64))

    def _column(self, name: str) -> Cells:
        """Made where it is not there."""
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = Cells()
            found.cover(self.table.used)
        return found

    def common(self, slots: np.ndarray) -> list[str]:
        """Columns that all of these have, sorted; those count that a shard took."""
        if len(slots) == 1:
            slot = slots.item(0)
            return sorted(name for name, cells in self.columns.items() if cells.type.item(slot) != NOTHING)
        return sorted(name for name, cells in self.columns.items() if len(slots) and (cells.type[slots] != NOTHING).all())

    def lost_in(self, name: str, slots: np.ndarray) -> list[str]:
        """Keys of those slots whose cell of this column went with its shard."""
        return [self.keys[slot] for slot in slots[self.columns[name].type[slots] == LOST].tolist()]

    # ------------------------------------------------------------ tasks

    def task(self, name: str, names: Names) -> Task:
        """One that was asked for these columns: the first time, and where that is long ago, every row is looked at."""
        task = self.tasks.get(name)
        if task is None:
            task = self.tasks[name] = Task()
            task.cover(self.table.used)
        if task.asked(names) is None:
            self._note(task, [task.begin(names)], self.all())
        return task

    def restore_task(self, name: str, sets: Sequence[Names], had: np.ndarray) -> None:
        """`sets`: of columns that it is asked for, the last one at the end; `had`: slots. After rows and columns."""
        task = self.tasks[name] = Task()
        task.cover(self.table.used)
        task.had[had] = True
        for names in sets:
            task.begin(names)
        self._note(task, task, self.all())

    def note(self, slots: np.ndarray) -> None:
        """They were made, or written to."""
        for task in self.tasks.values():
            self._note(task, task, slots)

    def _note(self, task: Task, sets: Iterable[Ready], slots: np.ndarray) -> None:
        for each in sets:
            may = ~task.had[slots]
            for name in each.names:
                cells = self.columns.get(name)
                may &= cells.type[slots] > NOTHING if cells is not None else False
            each.note(slots, may, self.table.number[slots])

    def all(self) -> np.ndarray:
        """Slots in the order of their keys. It looks at everything."""
        return np.array([*self.slots.values()], dtype=np.int64)
