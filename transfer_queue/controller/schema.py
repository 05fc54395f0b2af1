"""A topic's declaration, checked once at start and turned into look-up tables: who waits for which column, what a put must carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transfer_queue.codec.declared import BYTES_KINDS, check_declared, value_bytes
from transfer_queue.controller.errors import bad
from transfer_queue.messages import NOWHERE, Consumer, Slice, TopicSpec
from transfer_queue.samplers import Plan, ReplayError, SamplerError, check_replay, plan_of

MOST_ROWS = 1 << 16  # of a group: a reissue lists the missing ones, so that a number gone wild would be a list that fills the memory


Place = tuple[int, int, int, int]  # shard, block, start, stop
FEW = 16  # places that are looked at one by one: operations on arrays cost as much as so many
MOST_KINDS = 64  # of rows, by their columns: with many optional ones there could be more than anybody wants to keep


class RowStart(NamedTuple):
    """What a new row waits for."""

    missing: np.ndarray  # [consumers] int16: required columns not there
    ready: tuple[int, ...]  # consumers of rows that may have it at once
    pending: np.ndarray  # [consumers] int64: 1 for a consumer of groups that waits for it
    whole: tuple[int, ...]  # consumers of groups that may have its group once that is closed, if all its rows are alike
    queued: np.ndarray  # [consumers] bool: `ready`
    queued_whole: np.ndarray  # [consumers] bool: `whole`


class Schema:
    """Consumers are numbered by their place in `spec.consumers`. Raises ValueError for a declaration that cannot work."""

    def __init__(self, spec: TopicSpec) -> None:
        self.spec = spec
        _check(spec)
        self.consumers = spec.consumers
        self.plans = [_plan(consumer, spec) for consumer in spec.consumers]  # how each is served
        self.numbers = {consumer.name: number for number, consumer in enumerate(spec.consumers)}
        self.terminals = [number for number, consumer in enumerate(spec.consumers) if consumer.terminal]
        self.shared = frozenset(column.name for column in spec.columns if column.shared)
        self.per_row = frozenset(column.name for column in spec.columns if not column.shared)
        self.shared_names = tuple(column.name for column in spec.columns if column.shared)  # their order in tables
        self.per_row_names = tuple(column.name for column in spec.columns if not column.shared)
        self.place_of = {name: at for names in (self.shared_names, self.per_row_names) for at, name in enumerate(names)}
        self.optional = frozenset(column.name for column in spec.columns if column.optional)
        self.value_bytes = {column.name: value_bytes(column) for column in spec.columns if column.kind not in BYTES_KINDS}
        self.scalars = frozenset(column.name for column in spec.columns if column.kind == "scalar")
        outputs = {name for consumer in spec.consumers for name in consumer.outputs}
        self.generated = self.per_row - self.optional - outputs  # what every row that is put must carry
        self._all, self._needed = self.per_row | self.shared, self.generated | (self.shared - self.optional)  # of a put of whole groups
        shared_by, made_by = ({column.producer for column in spec.columns if column.shared is shared} for shared in (True, False))
        self.source = min(shared_by, default="source")  # the stage that puts prompts
        self.generator = min(made_by - self.numbers.keys(), default="rollout")  # the stage that pulls them
        self.readers: dict[str, list[int]] = {name: [] for name in self.per_row}  # column -> consumers that wait for it
        self.missing = np.zeros(len(spec.consumers), dtype=np.int16)  # [K] required columns of a new row
        for number, consumer in enumerate(spec.consumers):
            for name in set(consumer.inputs) & (self.per_row - self.optional):
                self.readers[name].append(number)
                self.missing[number] += 1
        self._starts: dict[frozenset[str], RowStart] = {}
        self.needs = np.zeros((len(self.per_row_names), len(spec.consumers)), dtype=np.int16)  # [C, K]: 1 where consumer k waits for column c
        for name, numbers in self.readers.items():
            self.needs[self.place_of[name], numbers] = 1

    def replays(self, number: int) -> bool:
        """Whether the consumer gets groups again."""
        replay = self.consumers[number].replay
        return replay is not None and replay.on

    def start_of(self, columns: frozenset[str]) -> RowStart:
        """Of a new row that has these columns. There are as many kinds of rows as a producer writes: few."""
        found = self._starts.get(columns)
        if found is None:
            missing = self.missing - sum(self.needs[self.place_of[name]] for name in columns)
            whole = np.array([consumer.unit == "group" for consumer in self.consumers])
            ready, ready_whole = ~whole & (missing == 0), whole & (missing == 0)
            numbers, numbers_whole = (tuple(np.flatnonzero(flags).tolist()) for flags in (ready, ready_whole))
            found = RowStart(missing, numbers, ((missing > 0) & whole).astype(np.int64), numbers_whole, ready, ready_whole)
            if len(self._starts) < MOST_KINDS:
                self._starts[columns] = found
        return found

    def consumer(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is None:
            raise bad(
                f"consumer={name!r} is not one of topic {self.spec.name!r}, which has {sorted(self.numbers)}: nothing can be taken; name one of them"
            )
        return number

    def check_prompt(self, gid: int, columns: dict[str, Slice]) -> None:
        self._check_columns(f"prompt {gid}", columns, self.shared, self.shared - self.optional)
        for name, piece in columns.items():
            if max(piece.shard, piece.block, piece.stop) >= 1 << 63:
                raise bad(f"prompt {gid}: column {name!r} lies at {piece}, no place in a shard: nothing was stored; send what `write` returned")
            self._check_each(f"prompt {gid}", name, [(piece.shard, piece.block, piece.start, piece.stop)])

    def check_rows(self, gids: Sequence[int], rows: Sequence[int], columns: Mapping[str, Sequence[Place]]) -> None:
        """Rows to put, at least one: [R], [R], and places [R] a column."""
        for gid, row in zip(gids, rows, strict=True):
            if not 0 <= row < MOST_ROWS:
                raise bad(f"row={row} of group {gid} is outside [0, {MOST_ROWS}): rows are samples of a group, counted from 0; nothing was stored")
        what = f"row {rows[0]} of group {gids[0]} and {len(rows) - 1} others" if len(rows) > 1 else f"row {rows[0]} of group {gids[0]}"
        self._check_columns(what, columns, self.per_row, self.generated)
        for name, found in columns.items():
            self._check_each(what, name, found)

    def check_put(self, columns: Mapping[str, np.ndarray]) -> None:
        """Whole groups: places [R, 4] a column, [G, 4] a shared one."""
        self._check_columns("a put", columns, self._all, self._needed)
        self.check_places("a put", columns)

    def check_outputs(self, number: int, columns: Iterable[str]) -> None:
        consumer = self.consumers[number]
        outputs = frozenset(consumer.outputs)
        self._check_columns(f"write-back of {consumer.name!r}", columns, outputs, outputs - self.optional)

    def check_places(self, what: str, columns: Mapping[str, np.ndarray]) -> None:
        """[n, 4] a column. Found here, it is the fault of who wrote it; found by a reader, it would end a stage that did nothing wrong."""
        for name, table in columns.items():
            if len(table) <= FEW:
                self._check_each(what, name, table.tolist())
                continue
            size, counts = self.value_bytes.get(name, 1), table[:, 3] - table[:, 2]
            odd = counts != size if name in self.scalars else counts % size
            if (table < 0).any() or (counts < 0).any() or odd.any():
                self._refuse_places(what, name, table)

    def _check_each(self, what: str, name: str, found: Iterable[Iterable[int]]) -> None:
        """The same of a few, one by one."""
        size, scalar = self.value_bytes.get(name, 1), name in self.scalars
        for shard, block, start, stop in found:
            count = stop - start
            if shard < 0 or block < 0 or start < 0 or count < 0 or (count != size if scalar else count % size):
                self._refuse_places(what, name, np.array([*found], dtype=np.int64))
                return

    def _refuse_places(self, what: str, name: str, table: np.ndarray) -> None:
        """Unless what looks wrong is an optional column that is not there."""
        shards, blocks, starts, stops = table.T
        wrong = (shards < 0) | (blocks < 0) | (starts < 0) | (stops < starts)
        if wrong.any() and name in self.optional:
            wrong &= (table != NOWHERE).any(axis=1)
        if wrong.any():
            place = table[np.argmax(wrong)].tolist()
            missing = "missing there, and it is not optional" if place == list(NOWHERE) else "no place in a shard"
            raise bad(f"{what}: column {name!r} lies at {place}, which is {missing}: nothing was stored; send what `write` returned")
        self._check_bytes(what, name, table[shards >= 0])

    def _check_bytes(self, what: str, name: str, table: np.ndarray) -> None:
        """A scalar has one value's bytes, a run a multiple of them."""
        size, counts = self.value_bytes.get(name, 1), table[:, 3] - table[:, 2]
        wrong = counts != size if name in self.scalars else counts % size != 0
        if wrong.any():
            place = table[np.argmax(wrong)].tolist()
            kind = f"scalar, {size} bytes a row" if name in self.scalars else f"per_token, {size} bytes a value"
            held = f"{place} holds {place[3] - place[2]} bytes"
            raise bad(f"{what}: column {name!r} is {kind}, but {held}: nothing was stored; write it with the topic's schema")

    def _check_columns(self, what: str, columns: Iterable[str], allowed: frozenset[str], needed: frozenset[str]) -> None:
        given = set(columns)
        if given - allowed:
            raise bad(
                f"{what}: columns {sorted(given - allowed)} are not among {sorted(allowed)} of topic {self.spec.name!r}: nothing was stored; "
                "declare them in the topic"
            )
        if needed - given:
            raise bad(
                f"{what}: columns {sorted(needed - given)} are missing and not optional in topic {self.spec.name!r}: nothing was stored, for "
                "its consumers would wait for ever; write them or declare them optional"
            )


def _plan(consumer: Consumer, spec: TopicSpec) -> Plan:
    try:
        plan = plan_of(consumer, spec)
        check_replay(consumer, spec, plan.ranks)
        return plan
    except (SamplerError, ReplayError) as error:
        raise ValueError(f"topic {spec.name!r}, consumer {consumer.name!r}: {error}") from error


def _check(spec: TopicSpec) -> None:
    window = spec.window
    where = f"topic {spec.name!r}"
    if window.batch < 1 or (window.staleness is not None and window.staleness < 0):
        raise ValueError(f"{where}: batch={window.batch} must be >= 1 and staleness={window.staleness} must be >= 0 or null; no window can be held")
    if window.budget_bytes < window.batch * window.group_bytes:
        raise ValueError(
            f"{where}: budget_bytes={window.budget_bytes} is below batch x group_bytes = {window.batch} x {window.group_bytes}: a batch could "
            "never be complete; raise the budget or lower the batch"
        )
    if spec.prompts_bound < 1 or not 1 <= spec.rows_per_group <= MOST_ROWS:
        raise ValueError(
            f"{where}: prompts_bound={spec.prompts_bound} must be >= 1 and rows_per_group={spec.rows_per_group} in [1, {MOST_ROWS}]; nothing "
            "could be admitted"
        )
    _check_names(spec, where)


def _check_names(spec: TopicSpec, where: str) -> None:
    for column in spec.columns:
        try:
            check_declared(column)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    columns = {column.name: column for column in spec.columns}
    if len(columns) != len(spec.columns) or len({consumer.name for consumer in spec.consumers}) != len(spec.consumers):
        raise ValueError(f"{where}: column and consumer names must be unique; one would hide the other")
    if not any(consumer.terminal for consumer in spec.consumers):
        raise ValueError(f"{where} has no terminal consumer: its groups could never end; mark the trainer's stage `terminal: true`")
    writers: dict[str, str] = {}
    for consumer in spec.consumers:
        if consumer.terminal and consumer.unit != "group":
            raise ValueError(f"{where}: terminal consumer {consumer.name!r} has unit {consumer.unit!r}: batches count groups; set `unit: group`")
        for name in (*consumer.inputs, *consumer.outputs):
            if name not in columns:
                raise ValueError(
                    f"{where}: consumer {consumer.name!r} names column {name!r}, which the topic does not have ({sorted(columns)}); declare it"
                )
        for name in consumer.outputs:
            if columns[name].shared or name in consumer.inputs or name in writers:
                raise ValueError(
                    f"{where}: output {name!r} of {consumer.name!r} is shared, its own input, or also written by {writers.get(name)!r}: a "
                    "column of a row has one writer; give it a name of its own"
                )
            writers[name] = consumer.name
