"""`init` and `close` without Ray. Every program is a process of its own: what is found is remembered by the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from transfer_queue import keys
from transfer_queue.local import LocalQueue

ROOT = Path(__file__).parents[3]
BEGIN = """
import asyncio, os, sys, threading, time
from concurrent.futures import wait
from transfer_queue.compat import init as queue
from transfer_queue.compat.door import door
from transfer_queue.errors import QueueGone, QueueTimeout

def listed():
    return door().call(lambda client: client.list_keys()).result(20)

def put(key):
    door().call(lambda client: client.put("train", [key], tags=[{}])).result(20)

def children():
    import psutil
    return sorted(process.pid for process in psutil.Process().children())
"""


def program(code: str, limit_s: float = 60.0, **environment: str) -> str:
    """What it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFER_QUEUE_")}
    done = subprocess.run(
        ["timeout", "-k", "5", str(limit_s), sys.executable, "-c", BEGIN + code],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=limit_s + 20,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def gone(pids: list[int], within_s: float = 20.0) -> list[int]:
    deadline = time.monotonic() + within_s
    while (left := [pid for pid in pids if psutil.pid_exists(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_a_process_without_a_queue_starts_one_for_itself_once_also_inside_a_loop_and_from_eight_threads() -> None:
    found = program("""
threads = [threading.Thread(target=queue.init) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join(60) for thread in threads]
first = children()

async def inside():
    began = time.monotonic()
    assert queue.init({"no": "matter"}) == {"no": "matter"}
    assert time.monotonic() - began < 0.1
    await asyncio.wrap_future(door().call(lambda client: client.put("train", ["a"], tags=[{"s": 1}])))

asyncio.run(inside())
assert children() == first
print(listed(), *first)
""")
    *listed, controller, shard = found.split()
    assert " ".join(listed) == "{'train': {'a': {'s': 1}}}"
    assert gone([int(controller), int(shard)]) == []


def test_after_close_calls_are_refused_and_init_starts_a_new_queue() -> None:
    program("""
queue.init()
put("a")
first = children()
over = threading.Event()
slow = door().call(lambda client: (over.wait(0.2), client.take("train", "t", 1, ["x"], wait_s=30.0)))
waits = door().call(lambda client: client.list_keys())
began = time.monotonic()
queue.close()
assert time.monotonic() - began < 6, time.monotonic() - began
assert children() == []
for future in (slow, waits):
    error = future.exception(20)
    assert isinstance(error, QueueGone), error
try:
    door()
except RuntimeError as error:
    assert "init()" in str(error)
else:
    raise AssertionError("a door without a queue")
queue.close()
assert queue.get_metrics_endpoint() is None
queue.init()
assert listed() == {} and not set(children()) & set(first)
""")


def test_a_queue_that_was_killed_is_replaced_by_the_next_init() -> None:
    program("""
import signal
queue.init()
put("a")
controller = children()[0]
os.kill(controller, signal.SIGKILL)
try:
    listed()
except QueueGone:
    pass
else:
    raise AssertionError("an answer of nobody")
queue.init()
assert listed() == {}
assert len(children()) == 2 and controller not in children()
""")


def test_a_forked_process_joins_the_same_queue_and_its_end_ends_nothing() -> None:
    program("""
queue.init()
put("parent")
before = children()
for close in (False, True):
    child = os.fork()
    if child == 0:
        try:
            put(f"child-{close}")
            assert "parent" in listed()["train"]
            if close:
                queue.close()
                queue.init()  # one of its own now
                assert listed() == {}
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert sorted(listed()["train"]) == ["child-False", "child-True", "parent"]
assert children() == before
""")


@pytest.mark.parametrize("forked", [False, True], ids=["alone", "with a forked child that lives on"])
def test_nobody_is_left_when_the_process_that_started_the_queue_is_killed(forked: bool) -> None:
    code = f"""
queue.init({{"metrics": {{"enabled": True}}}})
mine = children()
if {forked}:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
print("up", *mine, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN + code], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    )
    child = None
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if forked:
            child, line = int(line), process.stdout.readline()
        up, *pids = line.split()
        assert up == "up"
        assert len(pids) == 3
        process.kill()
        assert gone([int(pid) for pid in pids]) == []
        assert child is None or psutil.pid_exists(child)
    finally:
        process.kill()
        process.wait()
        if child is not None:
            os.kill(child, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def test_a_queue_that_the_environment_names_is_joined_and_close_only_leaves_it(tmp_path: Path) -> None:
    security = keys.make()
    client = tmp_path / "client.key"
    client.touch(0o600)
    import msgspec

    client.write_bytes(msgspec.json.encode(security.worker()))
    with LocalQueue([], keyed_only=True, security=security) as running:
        named = {"TRANSFER_QUEUE_URL": running.url, "TRANSFER_QUEUE_KEY": str(client)}
        program("put('a')\nassert children() == []\nqueue.init()\nqueue.close()", **named)
        program("assert listed() == {'train': {'a': {}}}\nassert children() == []", **named)
        assert all(name.startswith("shard") for name in running.status().members)


def test_the_metrics_endpoint_answers_where_it_is_told() -> None:
    pytest.importorskip("prometheus_client")
    found = program("""
import urllib.request
queue.init({"metrics": {"enabled": True, "port": 0}})
put("a")
where = queue.get_metrics_endpoint()
host, port = where.split(":")
assert host == "127.0.0.1" and int(port) > 0
text = urllib.request.urlopen(f"http://{where}/metrics", timeout=20).read().decode()
assert "transfer_queue_up 1" in text, text[:500]
print(len(children()))
""")
    assert found.split() == ["3"]


def test_a_configuration_that_cannot_be_used_starts_nothing() -> None:
    program("""
try:
    queue.init({"backend": {"storage_backend": "MooncakeStore"}})
except ValueError as error:
    assert "SimpleStorage" in str(error)
else:
    raise AssertionError("taken")
assert children() == []
""")


def test_a_queue_that_was_started_before_ray_was_initialised_says_that_others_do_not_find_it_once() -> None:
    """Ray is not needed for it: a module of its name that says that it was initialised."""
    found = program("""
import logging, types
told = []
logging.getLogger("transfer_queue").addHandler(handler := logging.Handler())
handler.emit = lambda record: told.append(record.getMessage())
queue.init()
listed()
before = len(told)
sys.modules["ray"] = types.SimpleNamespace(is_initialized=lambda: True)
queue.init()
listed()
print(before, len(told), "before transfer_queue.init()" in told[0])
del sys.modules["ray"]
queue.close()
""")
    assert found.split() == ["0", "1", "True"]
