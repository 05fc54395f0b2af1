"""A corpus of demonstrations as padded rows, for supervised training."""

from __future__ import annotations

import numpy as np
import torch

from asyncflow.contracts.batch import RowBatch, StageBatch
from asyncflow.data.batch import BatchShape, pad_rows
from asyncflow.data.task import Task
from transfer_queue.columns import Jagged


def demonstration_rows(task: Task, count: int, prompt_width: int, response_width: int) -> RowBatch:
    """The first `count` demonstrations of the task as one batch of `count` rows, the teacher's answer as response."""
    examples = [task.demonstration(index) for index in range(count)]
    numbers = np.arange(count)
    batch = StageBatch(numbers, np.zeros(count, dtype=np.int32), numbers, numbers)
    batch.columns["prompt_ids"] = Jagged.of([example.prompt_ids for example in examples], "int32")
    batch.columns["response_ids"] = Jagged.of([example.answer_ids for example in examples], "int32")
    return pad_rows(batch, BatchShape(count, prompt_width, response_width))


def take_rows(batch: RowBatch, rows: torch.Tensor) -> RowBatch:
    """The rows with these numbers ([n] int64), in this order."""
    return RowBatch(
        input_ids=batch.input_ids[rows],
        attention_mask=batch.attention_mask[rows],
        prompt_lens=batch.prompt_lens[rows],
        response_mask=batch.response_mask[rows],
        columns={name: column[rows] for name, column in batch.columns.items()},
        temperature=batch.temperature,
        real_rows=len(rows),
    )
