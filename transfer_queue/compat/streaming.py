"""Batches for a training loop, as they are put: a dataset that takes rows of a partition for one task, and torch's loader over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from transfer_queue.compat.batch_meta import BatchMeta
from transfer_queue.compat.client import TransferQueueClient
from transfer_queue.compat.tensors import TensorDict, selected

Batch = tuple[TensorDict, BatchMeta]
EMPTY_S = 1.0  # the default fetch waits so long for rows, then looks whether the loop is still wanted


class StreamingDataset(IterableDataset[Batch]):
    """An endless stream of micro-batches. Batches are kept in `buffer` and given again after `reset`; `step` goes on with another partition.

    config is not looked at: `init()` has found the queue, also for a worker process of a loader. dp_rank is passed on to `fetch_batch_fn`: rows are
    given once a task, so ranks that must see the same rows get them from one that takes them. Raises ValueError.
    """

    def __init__(
        self,
        config: Any,
        batch_size: int,
        micro_batch_size: int,
        data_fields: list[str],
        partition_id: str,
        task_name: str,
        dp_rank: int,
        should_check_consumption_status: bool = False,
        fetch_batch_fn: Callable[..., tuple[TensorDict | None, BatchMeta]] | None = None,
        process_batch_fn: Callable[..., Sequence[Batch]] | None = None,
    ) -> None:
        if micro_batch_size < 1 or batch_size < micro_batch_size:
            raise ValueError(f"micro_batch_size={micro_batch_size}, batch_size={batch_size}: 1 <= micro_batch_size <= batch_size")
        if not data_fields:
            raise ValueError("data_fields=[]: name at least one column")
        if dp_rank < 0:
            raise ValueError(f"dp_rank={dp_rank}: at least 0")
        if should_check_consumption_status:
            raise ValueError("should_check_consumption_status=True: who has had what is not told here; leave the loop when you have counted enough")
        super().__init__()
        self.config = config
        self.batch_size, self.micro_batch_size, self.data_fields = batch_size, micro_batch_size, data_fields
        self.partition_id, self.task_name, self.dp_rank = partition_id, task_name, dp_rank
        self.should_check_consumption_status = should_check_consumption_status
        self.fetch_batch_fn = fetch_batch_fn or default_fetch_batch_fn
        self.process_batch_fn = process_batch_fn or chunk_batch_fn
        self.sampling_config = {"dp_rank": dp_rank, "task_name": task_name}
        self.buffer: list[Batch] = []
        self.batch_index = 0

    def __iter__(self) -> Iterator[Batch]:
        client = TransferQueueClient()
        while True:
            if self.batch_index == len(self.buffer):
                batch, meta = self.fetch_batch_fn(
                    tq_client=client,
                    data_fields=self.data_fields,
                    batch_size=self.batch_size,
                    partition_id=self.partition_id,
                    task_name=self.task_name,
                    sampling_config=self.sampling_config,
                    batch_index=self.batch_index,
                )
                if batch is None:
                    continue
                self.buffer.append((batch, meta))
            self.batch_index += 1
            yield from self.process_batch_fn(*self.buffer[self.batch_index - 1], micro_batch_size=self.micro_batch_size)

    def reset(self) -> None:
        """What is in `buffer` comes again."""
        self.batch_index = 0

    def step(self, partition_id: str) -> None:
        """Go on with this partition; `buffer` is emptied."""
        self.buffer, self.batch_index, self.partition_id = [], 0, partition_id


class StreamingDataLoader(DataLoader[Batch]):
    """torch's loader over a StreamingDataset, which makes the batches."""

    dataset: StreamingDataset

    def __init__(
        self,
        dataset: StreamingDataset,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
    ) -> None:
        super().__init__(
            dataset=dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=collate_fn or _as_it_is,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
        )

    def reset(self) -> None:
        self.dataset.reset()

    def step(self, partition_id: str) -> None:
        self.dataset.step(partition_id)

    def get_buffer(self) -> list[Batch]:
        return self.dataset.buffer


def default_fetch_batch_fn(
    tq_client: TransferQueueClient,
    data_fields: list[str],
    batch_size: int,
    partition_id: str,
    task_name: str,
    sampling_config: dict[str, Any],
    batch_index: int,
) -> tuple[TensorDict | None, BatchMeta]:
    """The next rows; (None, the empty batch) where there are too few for EMPTY_S."""
    meta = tq_client.taken(data_fields, batch_size, partition_id, task_name, EMPTY_S)
    return (tq_client.get_data(meta), meta) if meta is not None else (None, BatchMeta.empty())


def chunk_batch_fn(td: TensorDict, batch_meta: BatchMeta, micro_batch_size: int = 1) -> list[Batch]:
    """Runs of `micro_batch_size` rows, the last one shorter where it does not come out even; each with the meta of its rows."""
    rows = td.batch_size[0]
    if not 1 <= micro_batch_size <= rows:
        raise ValueError(f"micro_batch_size={micro_batch_size} of {rows} rows: 1 <= micro_batch_size <= rows")
    bounds = [(start, min(start + micro_batch_size, rows)) for start in range(0, rows, micro_batch_size)]
    return [(selected(td, start, stop), batch_meta[start:stop]) for start, stop in bounds]


def _as_it_is(batch: Any) -> Any:
    return batch


__all__ = ["StreamingDataLoader", "StreamingDataset", "chunk_batch_fn", "default_fetch_batch_fn"]
