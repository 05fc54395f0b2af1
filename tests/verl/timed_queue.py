"""How long a process of verl is in its queue, whoever's queue it is: the public names of `transfer_queue`, wrapped. It is named in
VERL_USE_EXTERNAL_MODULES, so every process that imports verl has it.

A line of JSON for each outermost call goes to TIMED_QUEUE/PID.jsonl: {"role", "call", "began" (seconds since 1970), "s"}, and one for each
`mark`: {"role", "step", "began"}. A file that is appended to line by line, for Ray kills actors without a word.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

FUNCTIONS = (
    *("init", "kv_put", "kv_batch_put", "kv_batch_get", "kv_list", "kv_clear", "save_checkpoint", "load_checkpoint"),
    *("async_kv_put", "async_kv_batch_put", "async_kv_batch_get", "async_kv_list", "async_kv_clear"),
)
METHODS = ("async_kv_retrieve_meta", "async_kv_retrieve_keys", "async_get_data", "async_put")
WAITING = {"kv_list", "async_kv_list", "init"}  # of a trainer that polls for what is not there yet: its length says nothing of a queue
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def install() -> None:
    """Wrap what verl calls; does nothing without TIMED_QUEUE."""
    if "TIMED_QUEUE" not in os.environ:
        return
    import transfer_queue

    for name in FUNCTIONS:
        setattr(transfer_queue, name, _timed(name, getattr(transfer_queue, name)))
    client = transfer_queue.TransferQueueClient
    for name in METHODS:
        setattr(client, name, _timed(name, getattr(client, name)))


def mark(step: int) -> None:
    """From here on this process is in `step`."""
    if "TIMED_QUEUE" in os.environ:
        _write({"role": _role(), "step": step, "began": time.time()})


def step_seconds(folder: Path, first: int, last: int) -> list[float]:
    """From the mark of each step to the next one's. Raises ValueError where one was not marked."""
    began = _marks(_lines(folder))
    missing = sorted(set(range(first, last + 2)) - began.keys())
    if missing:
        raise ValueError(f"{folder}: no mark of the steps {missing}: a step ends where the next one begins; train one more than is measured")
    return [began[step + 1] - began[step] for step in range(first, last + 1)]


def queue_seconds(folder: Path, first: int, last: int) -> dict[str, dict[str, list[float]]]:
    """{role: {call: seconds in each of the steps}}, a call being of the step in which it began."""
    lines = _lines(folder)
    began = _marks(lines)
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        step = max((step for step, at in began.items() if at <= line["began"]), default=0)
        if "call" in line and first <= step <= last:
            calls = found.setdefault(line["role"], {}).setdefault(line["call"], [0.0] * (last - first + 1))
            calls[step - first] += line["s"]
    return found


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def _marks(lines: list[dict[str, Any]]) -> dict[int, float]:
    """When each step began: a step of several mini-batches is marked by each of them."""
    began: dict[int, float] = {}
    for line in lines:
        if "step" in line:
            began[line["step"]] = min(line["began"], began.get(line["step"], line["began"]))
    return began


def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def awaited(*arguments: Any, **settings: Any) -> Any:
        with _counted(name):
            return await function(*arguments, **settings)

    @functools.wraps(function)
    def called(*arguments: Any, **settings: Any) -> Any:
        with _counted(name):
            return function(*arguments, **settings)

    return awaited if inspect.iscoroutinefunction(function) else called


@contextmanager
def _counted(name: str) -> Iterator[None]:
    """What one public name does through another one is not counted twice."""
    if _inside.get():
        yield
        return
    token, wall, began = _inside.set(True), time.time(), time.perf_counter()
    try:
        yield
    finally:
        _inside.reset(token)
        _write({"role": _role(), "call": name, "began": wall, "s": time.perf_counter() - began})


def _write(line: dict[str, Any]) -> None:
    descriptor = _file(os.getpid())
    os.write(descriptor, json.dumps(line).encode() + b"\n")


@functools.cache
def _file(pid: int) -> int:
    return os.open(Path(os.environ["TIMED_QUEUE"]) / f"{pid}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


@functools.cache
def _role() -> str:
    """The class of the Ray actor that this process is, as Ray writes it into the command line: ray::[NAME:]CLASS[.METHOD()]."""
    title = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    return title.removeprefix("ray::").rpartition(":")[2].split(".")[0].split("(")[0]


install()
