"""A topic as one consumer sees it: which columns a batch has, and who says that a row is done."""

from __future__ import annotations

from transfer_queue import messages as m
from transfer_queue.codec import storage, value_elements
from transfer_queue.schema import column_of
from transfer_queue.torch_data.settings import Source
from transfer_queue.torch_data.steps import part_of


class View:
    """Raises ValueError for a consumer that the settings do not fit."""

    def __init__(self, source: Source, spec: m.TopicSpec) -> None:
        self.spec = spec
        self.consumer = _consumer(source, spec)
        self.columns = {name: column_of(spec, name) for name in self.consumer.inputs}
        optional = {column.name for column in spec.columns if column.optional}
        self.owes = sorted(set(self.consumer.outputs) - optional)  # columns without which a row cannot be acknowledged
        self._counted = [(list(self.columns).index(name), _bytes_of(self.columns[name])) for name in _tokens(source, self.columns)]
        _check(source, spec, self.consumer, self.owes)

    def tokens(self, ref: m.RowRef) -> int:
        """Of a row, told by the length of its slices: nothing is read for it."""
        slices = [(ref.columns[turn], width) for turn, width in self._counted]
        return sum((piece.stop - piece.start) // width for piece, width in slices if piece is not None)


def _consumer(source: Source, spec: m.TopicSpec) -> m.Consumer:
    for consumer in spec.consumers:
        if consumer.name == source.consumer:
            return consumer
    known = [consumer.name for consumer in spec.consumers]
    raise ValueError(f"consumer={source.consumer!r} is not one of topic {spec.name!r}, which has {known}: nothing can be taken; name one of them")


def _tokens(source: Source, columns: dict[str, m.Column]) -> tuple[str, ...]:
    for name in source.token_columns:
        if name not in columns or columns[name].kind != "per_token":
            runs = [column.name for column in columns.values() if column.kind == "per_token"]
            raise ValueError(f"token_columns: {name!r} is no per_token input of {source.consumer!r}, which has {runs}: tokens cannot be counted")
    return source.token_columns


def _bytes_of(column: m.Column) -> int:
    """Of one value."""
    return storage(column.dtype).itemsize * value_elements(column)


def _check(source: Source, spec: m.TopicSpec, consumer: m.Consumer, owes: list[str]) -> None:
    if consumer.needs_weights:
        raise ValueError(
            f"consumer={consumer.name!r} needs weights: it gets only rows that its weights may serve, and a loader's processes hold none; use "
            "QueueClient.take with `loaded`"
        )
    if consumer.replay is not None and consumer.replay.on:
        raise ValueError(
            f"consumer={consumer.name!r} gets groups again that were trained before, and a batch of a loader has no place for them: they would count "
            "as replayed and nobody had seen them; use QueueClient.take, or declare the consumer without `replay`"
        )
    if source.share is not None and not consumer.terminal:
        raise ValueError(f"share={source.share}: {consumer.name!r} is not terminal, so it has no steps to share out: loaders share its rows anyway")
    if source.share is not None and not part_of(spec.window.batch, *source.share):
        raise ValueError(
            f"share={source.share}: a step of {spec.name!r} has {spec.window.batch} groups, so this rank would never get one and the others would "
            "wait for it for ever; use at most as many ranks as the window's batch has groups"
        )
    if source.max_tokens is not None and owes:
        raise ValueError(
            f"max_tokens={source.max_tokens}: {consumer.name!r} writes {owes}, and a lease is written back as a whole, so it has to be one batch; "
            "bound batches by `limit`"
        )
