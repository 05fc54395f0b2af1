"""What the tests of the checkpoint engine share: weights of every kind, a publisher in a thread, waiting with a deadline."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from checkpoint_engine.publisher import Publisher
from checkpoint_engine.weights_id import WeightsId

torch.set_num_threads(1)

Named = list[tuple[str, torch.Tensor]]


def policy(version: int, epoch: int = 0) -> WeightsId:
    return WeightsId("policy", epoch, version)


def plain_weights(version: int, tensors: int = 4, numel: int = 8192) -> Named:
    """Weights whose every byte depends on the version."""
    generator = torch.Generator().manual_seed(version)
    return [(f"layers.{i}.weight", torch.randn(numel, generator=generator)) for i in range(tensors)]


def odd_weights(seed: int) -> Named:
    """Every shape and dtype that has broken such systems."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(64, 48, generator=g)
    nan = torch.tensor([0x7FC00001, 0x7F800001, -1, 5], dtype=torch.int32).view(torch.float32)  # NaN payloads
    shared = torch.randn(33, generator=g)
    return [
        ("strided", base[::3, 1::5]),
        ("transposed", base.t()),
        ("expanded", torch.randn(1, 7, generator=g).expand(5, 7)),
        ("odd_bytes", torch.randint(0, 255, (13,), dtype=torch.uint8, generator=g)),
        ("float64_after_odd", torch.randn(3, dtype=torch.float64, generator=g)),
        ("scalar", torch.tensor(3.25)),
        ("empty", torch.empty(0, 5)),
        ("bool", torch.tensor([True, False, True])),
        ("bf16", torch.randn(11, generator=g).bfloat16()),
        ("fp8", torch.randn(9, generator=g).to(torch.float8_e4m3fn)),
        ("fp8_e5m2", torch.randn(9, generator=g).to(torch.float8_e5m2)),
        ("complex", torch.randn(5, dtype=torch.complex64, generator=g)),
        ("conjugated", torch.randn(5, dtype=torch.complex64, generator=g).conj()),
        ("nan", nan),
        ("int64", torch.tensor([2**62, -1])),
        ("parameter", torch.nn.Parameter(torch.randn(4, generator=g))),
        ("large", torch.randn(4000, generator=g)),
        ("tied", shared),
        ("tied_again", shared),
        ("last_empty", torch.empty(2, 0, dtype=torch.int8)),
    ]


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """dtype, shape and the exact bytes in C order."""
    plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return str(tensor.dtype), tuple(tensor.shape), plain.view(torch.uint8).numpy().tobytes()


def eventually(holds: Callable[[], Any], deadline_s: float = 10.0, what: str = "") -> Any:
    """Return the first truthy value of `holds` or fail after the deadline."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not (value := holds()):
        assert time.monotonic() < end, f"not within {deadline_s} s: {what or holds}"
        pause.wait(0.005)
    return value


@contextlib.contextmanager
def running_publisher(**settings: Any) -> Iterator[Publisher]:
    """A publisher in a thread; fails the test if its loop raised."""
    publisher = Publisher("policy", **settings)
    stop, failure = threading.Event(), []

    def run() -> None:
        try:
            publisher.run(stop)
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="publisher")
    thread.start()
    try:
        yield publisher
    finally:
        stop.set()
        thread.join(15)
    assert not thread.is_alive(), "the publisher did not stop"
    assert not failure, failure


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def settled() -> tuple[int, int]:
    """(open files, threads) once they have not changed for 0.3 s: what closed groups leave goes within their timeout."""
    counts, since = (open_files(), threads()), time.monotonic()

    def still() -> bool:
        nonlocal counts, since
        now = open_files(), threads()
        if now != counts:
            counts, since = now, time.monotonic()
        return time.monotonic() - since > 0.3

    eventually(still, what="descriptors and threads settle")
    return counts
