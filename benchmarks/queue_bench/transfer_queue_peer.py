"""The peer: the PyPI package TransferQueue (verl's queue) on Ray, asked for one measurement at a time. Runs in its own environment.

As its users do: one partition a batch, the synchronous client, the storage backend and the number of storage units that it comes with; tensors in a
TensorDict, jagged columns as nested tensors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import ray
import torch
from answering import answer
from payload import Case, read_every_byte
from tensordict import TensorDict

import transfer_queue as tq

CPUS = 16  # of Ray's book-keeping: with fewer than its actors ask for, the package waits for ever
SAMPLE_TOKENS = 256  # int32: 1 KB


class Peer:
    def start(self, address: str | None = None) -> dict[str, Any]:
        """Start Ray and the queue, or join those at `address`."""
        self.first = address is None
        if self.first:
            context = ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False)
        else:
            context = ray.init(address=address, log_to_driver=False)
        tq.init()
        self.client = tq.get_client()
        self.turn = 0
        return {"address": context.address_info["gcs_address"], "version": tq.__version__}

    def make(self, case: dict[str, Any]) -> dict[str, Any]:
        found = Case(**case)
        offsets = torch.from_numpy(found.offsets())
        columns = {name: torch.from_numpy(values) for name, values in found.values().items()}
        if found.jagged:
            data = {name: torch.nested.nested_tensor_from_jagged(values, offsets) for name, values in columns.items()}
        else:
            data = {name: values.view(found.rows, found.tokens) for name, values in columns.items()}
        self.data = TensorDict(data, batch_size=[found.rows])
        return {}

    def round(self) -> dict[str, float]:
        """Put, ask what is there, get, read every byte, clear: seconds."""
        self.turn += 1
        partition = f"batch_{self.turn}"
        begin = time.perf_counter()
        self.client.put(data=self.data, partition_id=partition)
        put = time.perf_counter()
        meta = self.client.get_meta(data_fields=list(self.data.keys()), batch_size=len(self.data), partition_id=partition, task_name="read")
        asked = time.perf_counter()
        got = self.client.get_data(meta)
        gotten = time.perf_counter()
        read_every_byte([plain(tensor) for tensor in got.values()])
        read = time.perf_counter()
        assert got.batch_size[0] == len(self.data)
        self.client.clear_partition(partition)
        return {"put_s": put - begin, "meta_s": asked - put, "get_s": gotten - asked, "get_and_read_s": read - asked}

    def fill(self, rows: int, batch: int = 4096) -> dict[str, Any]:
        """Store so many 1 KB samples, which nobody has had."""
        while rows > 0:
            self._put(min(batch, rows), "stored")
            rows -= batch
        return {}

    def samples(self, batch: int, count: int, partition: str = "samples") -> dict[str, Any]:
        """`count` times: put `batch` samples, ask for as many, get them. Seconds of each, and when it began and ended."""
        data = self._samples(batch)
        seconds: list[float] = []
        asked: list[float] = []
        begin = time.monotonic()
        for _ in range(count):
            start = time.perf_counter()
            self.client.put(data=data, partition_id=partition)
            before = time.perf_counter()
            meta = self.client.get_meta(data_fields=["ids"], batch_size=batch, partition_id=partition, task_name="read")
            after = time.perf_counter()
            got = self.client.get_data(meta)
            seconds.append(time.perf_counter() - start)
            asked.append(after - before)
            assert got.batch_size[0] == batch
        return {"seconds": seconds, "asked": asked, "begin": begin, "end": time.monotonic()}

    def clear(self, partition: str = "samples") -> dict[str, Any]:
        self.client.clear_partition(partition)
        return {}

    def _put(self, batch: int, partition: str) -> None:
        self.client.put(data=self._samples(batch), partition_id=partition)

    def _samples(self, batch: int) -> TensorDict:
        return TensorDict({"ids": torch.ones(batch, SAMPLE_TOKENS, dtype=torch.int32)}, batch_size=[batch])


def plain(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, dense or nested, without a copy where it is contiguous."""
    values = tensor.values() if tensor.is_nested else tensor
    return values.contiguous().numpy()


if __name__ == "__main__":
    peer = Peer()
    answer(peer)
    if peer.first:
        tq.close()  # by one that joined, it would end the controller under the others
    ray.shutdown()
