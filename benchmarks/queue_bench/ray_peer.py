"""The other peer: Ray's object store, asked for one measurement at a time. Runs in its own environment. It knows no jagged columns: dense arrays."""

from __future__ import annotations

import time
from typing import Any

import ray
from answering import answer
from payload import Case, read_every_byte


class Peer:
    def start(self) -> dict[str, Any]:
        ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False, object_store_memory=4 << 30)
        return {"version": ray.__version__}

    def make(self, case: dict[str, Any]) -> dict[str, Any]:
        found = Case(**case)
        self.data = {name: values.reshape(found.rows, found.tokens) for name, values in found.values().items()}
        return {}

    def round(self) -> dict[str, float]:
        begin = time.perf_counter()
        reference = ray.put(self.data)
        put = time.perf_counter()
        got = ray.get(reference)
        gotten = time.perf_counter()
        read_every_byte(list(got.values()))
        return {"put_s": put - begin, "get_s": gotten - put, "get_and_read_s": time.perf_counter() - put}


if __name__ == "__main__":
    answer(Peer())
    ray.shutdown()
