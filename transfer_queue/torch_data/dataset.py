"""An `IterableDataset` over a consumer of a topic.

By itself, and in a plain DataLoader (batch_size=None, in_order=False), it acknowledges a batch when it is asked for the next one: in one process that
is when you are through with it, in a worker process when the DataLoader has it. What a DataLoader has fetched ahead dies with the training process;
`QueueLoader` acknowledges when you are through there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.utils.data import IterableDataset, get_worker_info

from transfer_queue.security import Security
from transfer_queue.torch_data.acknowledging import Acknowledger
from transfer_queue.torch_data.batch import Batch
from transfer_queue.torch_data.reader import stream
from transfer_queue.torch_data.receipts import Ended
from transfer_queue.torch_data.settings import Source, default_name


class QueueDataset(IterableDataset[Batch]):
    def __init__(
        self,
        url: str,
        topic: str,
        consumer: str,
        *,
        limit: int = 32,
        at_least: int = 1,
        max_tokens: int | None = None,
        token_columns: Sequence[str] = (),
        share: tuple[int, int] | None = None,
        name: str | None = None,
        role: str | None = None,
        security: Security | None = None,
        writable: bool = False,
        map_memory: bool = True,
        timeout_s: float = 30.0,
    ) -> None:
        """Nothing is connected before it is iterated. Each process that iterates is a member of its own, `name`-0, `name`-1, …

        limit, at_least: most and fewest rows (groups, where the consumer's unit is the group) in a batch.
            Fewer at the end of a step, and after 30 s without more.
        max_tokens: instead, as many as have so many values in `token_columns` together; `limit` is then what one lease holds.
        share: (rank, ranks), where ranks take the steps of a terminal consumer together; see docs/transfer_queue.md.
        name: by default consumer and rank. Two loaders that are open at once need two names: the second would end the first.
        writable: batches that may be changed in place (one copy more). map_memory, security, timeout_s: as for `QueueClient.connect`.
        Raises ValueError for numbers that cannot work; what the topic does not allow is raised when it is iterated.
        """
        self.source = Source(
            url=url,
            topic=topic,
            consumer=consumer,
            name=default_name(consumer) if name is None else name,
            role=consumer if role is None else role,
            security=security,
            limit=limit,
            at_least=at_least,
            max_tokens=max_tokens,
            token_columns=tuple(token_columns),
            share=share,
            writable=writable,
            map_memory=map_memory,
            timeout_s=timeout_s,
        )

    def __iter__(self) -> Iterator[Batch]:
        """Until nothing will ever come again: the topic is over, or the run is stopped. A consumer with outputs needs a QueueLoader."""
        info = get_worker_info()
        acknowledger = Acknowledger(self.source)
        try:
            for batch in stream(self.source, 0 if info is None else info.id, 1 if info is None else info.num_workers):
                if isinstance(batch, Ended):
                    return
                acknowledger.handed(batch.receipt)
                yield batch
                acknowledger.through()
        finally:
            acknowledger.close()
