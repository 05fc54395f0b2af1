"""TensorBoard event files in RUN/tensorboard, with the `tensorboard` package alone: neither torch nor tensorflow is loaded into the launcher.

(torch.utils.tensorboard and tensorboardX both import torch where it is installed: 1 s and 180 MB instead of 0.2 s and 10 MB.)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary as TensorboardSummary
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from asyncflow.observe.records import StepRecord, Summary
from asyncflow.observe.writers.interface import WriterContext
from asyncflow.observe.writers.scalars import ACCURACY, scalars

FOLDER = "tensorboard"
FLUSH_S = 5  # between two writes to disk


class TensorboardWriter:
    """A scalar a number, at the version as its step; configuration and summary as text."""

    def __init__(self, folder: Path, config: str) -> None:
        self._events = EventFileWriter(str(folder), flush_secs=FLUSH_S)
        self._text("config", 0, config)

    def step(self, record: StepRecord) -> None:
        self._scalars(record.version, scalars(record))

    def evaluation(self, version: int, accuracy: float, t_s: float) -> None:
        self._scalars(version, {ACCURACY: accuracy})

    def close(self, summary: Summary | None) -> None:
        if summary is not None:
            self._text("summary", summary.versions, as_code(msgspec.json.encode(summary)))
        self._events.close()

    def _scalars(self, version: int, values: Mapping[str, float]) -> None:
        self._add(version, TensorboardSummary(value=[TensorboardSummary.Value(tag=name, simple_value=value) for name, value in values.items()]))

    def _text(self, tag: str, version: int, markdown: str) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
        self._add(version, TensorboardSummary(value=[TensorboardSummary.Value(tag=tag, metadata=metadata, tensor=tensor)]))

    def _add(self, version: int, summary: TensorboardSummary) -> None:
        self._events.add_event(Event(wall_time=time.time(), step=version, summary=summary))


def as_code(json: bytes) -> str:
    """JSON as a block of Markdown, indented."""
    return f"```json\n{msgspec.json.format(json).decode()}\n```"


def make(context: WriterContext) -> TensorboardWriter:
    """For `observe.writers: [tensorboard]`."""
    return TensorboardWriter(context.run_dir / FOLDER, as_code(context.config.encode()))
