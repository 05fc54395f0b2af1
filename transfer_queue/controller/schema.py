"""A topic's declaration, checked once at start and turned into look-up tables: who waits for which column, what a put must carry."""

from __future__ import annotations

from collections.abc import Iterable

from transfer_queue.codec.declared import BYTES_KINDS, check_declared, value_bytes
from transfer_queue.controller.errors import bad
from transfer_queue.messages import Slice, TopicSpec

MOST_ROWS = 1 << 16  # of a group: a reissue lists the missing ones, so that a number gone wild would be a list that fills the memory


class Schema:
    """Consumers are numbered by their place in `spec.consumers`. Raises ValueError for a declaration that cannot work."""

    def __init__(self, spec: TopicSpec) -> None:
        self.spec = spec
        _check(spec)
        self.consumers = spec.consumers
        self.numbers = {consumer.name: number for number, consumer in enumerate(spec.consumers)}
        self.terminals = [number for number, consumer in enumerate(spec.consumers) if consumer.terminal]
        self.shared = frozenset(column.name for column in spec.columns if column.shared)
        self.per_row = frozenset(column.name for column in spec.columns if not column.shared)
        self.optional = frozenset(column.name for column in spec.columns if column.optional)
        self.value_bytes = {column.name: value_bytes(column) for column in spec.columns if column.kind not in BYTES_KINDS}
        self.scalars = frozenset(column.name for column in spec.columns if column.kind == "scalar")
        outputs = {name for consumer in spec.consumers for name in consumer.outputs}
        self.generated = self.per_row - self.optional - outputs  # what every `RowPut` must carry
        shared_by, made_by = ({column.producer for column in spec.columns if column.shared is shared} for shared in (True, False))
        self.source = min(shared_by, default="source")  # the stage that puts prompts
        self.generator = min(made_by - self.numbers.keys(), default="rollout")  # the stage that pulls them
        self.readers: dict[str, list[int]] = {name: [] for name in self.per_row}  # column -> consumers that wait for it
        self.missing = [0] * len(spec.consumers)  # required columns of a new row, by consumer
        for number, consumer in enumerate(spec.consumers):
            for name in set(consumer.inputs) & (self.per_row - self.optional):
                self.readers[name].append(number)
                self.missing[number] += 1

    def consumer(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is None:
            raise bad(
                f"consumer={name!r} is not one of topic {self.spec.name!r}, which has {sorted(self.numbers)}: nothing can be taken; name one of them"
            )
        return number

    def check_prompt(self, gid: int, columns: dict[str, Slice]) -> None:
        self._check_columns(f"prompt {gid}", columns, self.shared, self.shared - self.optional)
        self.check_slices(f"prompt {gid}", columns.items())

    def check_row(self, gid: int, row: int, columns: dict[str, Slice]) -> None:
        if not 0 <= row < MOST_ROWS:
            raise bad(f"row={row} of group {gid} is outside [0, {MOST_ROWS}): rows are samples of their group, counted from 0; nothing was stored")
        self._check_columns(f"row {row} of group {gid}", columns, self.per_row, self.generated)
        self.check_slices(f"row {row} of group {gid}", columns.items())

    def check_outputs(self, number: int, columns: Iterable[str]) -> None:
        consumer = self.consumers[number]
        outputs = frozenset(consumer.outputs)
        self._check_columns(f"write-back of {consumer.name!r}", columns, outputs, outputs - self.optional)

    def check_slices(self, what: str, slices: Iterable[tuple[str, Slice]]) -> None:
        """Found here, it is the fault of who wrote it; found by a reader, it would end a stage that did nothing wrong."""
        for name, piece in slices:
            if min(piece.shard, piece.block, piece.start) < 0 or piece.stop < piece.start or max(piece.shard, piece.block, piece.stop) >= 1 << 63:
                raise bad(f"{what}: column {name!r} lies at {piece}, which is no place in a shard: nothing was stored; send what `write` returned")
            size, count = self.value_bytes.get(name, 1), piece.stop - piece.start
            if count != size if name in self.scalars else count % size:
                kind = f"scalar, {size} bytes a row" if name in self.scalars else f"per_token, {size} bytes a value"
                raise bad(f"{what}: column {name!r} is {kind}, but {piece} holds {count} bytes: nothing was stored; write it with the topic's schema")

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
