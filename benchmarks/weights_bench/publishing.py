"""The publisher of the benchmark, in a process of its own."""

from __future__ import annotations

import threading
from typing import Any, Literal

import msgspec

from benchmarks.queue_bench.answering import answer
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher


class Serving:
    def start(self, transport: Literal["collective", "pull"], spare: int = 1, bucket_bytes: int = 16 << 20) -> dict[str, Any]:
        self._reports: list[SyncReport] = []
        self._publisher = Publisher("policy", transport=transport, spare=spare, bucket_bytes=bucket_bytes, on_sync=self._reports.append)
        threading.Thread(target=self._publisher.run, args=(threading.Event(),), daemon=True).start()
        return {"endpoint": self._publisher.endpoint}

    def members(self) -> dict[str, int]:
        return {"count": len(self._publisher._fanout.members)}

    def last_sync(self) -> dict[str, Any]:
        return {"sync": msgspec.to_builtins(self._reports[-1]) if self._reports else None}


if __name__ == "__main__":
    answer(Serving())
