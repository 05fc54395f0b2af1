"""One queue for a Ray cluster of one CPU and two nodes: whoever comes first starts it, it dies with that one, and nobody is left. Every program is a
driver of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch.ray_nodes import gone, nodes

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LIMIT_S = 150
BEGIN = """
import asyncio, logging, os, signal, sys, threading, time
import ray
from transfer_queue.compat import init as queue
from transfer_queue.compat.door import door
from transfer_queue.errors import QueueGone, QueueTimeout

HERE, THERE = {"head": 0.001}, {"second": 0.001}

def ask(what):
    return door().call(what).result(60)

def listed():
    return ask(lambda client: client.list_keys())

def put(key):
    ask(lambda client: client.put("train", [key], tags=[{}]))

@ray.remote(num_cpus=0)
class Worker:  # as verl's agent loops: a coroutine actor, which calls init() in its constructor, where a loop may run
    def __init__(self):
        queue.init()

    async def put(self, number):
        import numpy as np
        began = time.monotonic()
        queue.init()  # as verl's trainer workers do, in a coroutine
        assert time.monotonic() - began < 0.5
        columns = {"x": np.full((1, 3), number)}
        await asyncio.wrap_future(door().call(lambda client: client.put("train", [str(number)], columns, [{"number": number}])))
        return door().address.url, os.getpid()

    async def read(self):
        def sums(client):
            return {key: float(client.get("train", [key])["x"][0].sum()) for key in client.list_keys(["train"])["train"]}
        return await asyncio.wrap_future(door().call(sums))

    async def fails(self):
        try:
            await asyncio.wrap_future(door().call(lambda client: client.list_keys()))
        except (QueueGone, QueueTimeout) as error:
            return type(error).__name__
        return "answered"

ray.init(address=os.environ["CLUSTER"], log_to_driver=False, logging_level=logging.ERROR)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Its address. One CPU in all, on the first node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRANSFER_QUEUE_URL", raising=False)
        first, second = {"num_cpus": 1, "resources": {"head": 1.0}}, {"num_cpus": 0, "resources": {"second": 1.0}}
        with nodes(patch, first, second) as running:
            yield running.address


def program(cluster: str, code: str, limit_s: float = LIMIT_S) -> str:
    """What it prints. When it has ended, none of the queue's processes is left."""
    done = subprocess.run(
        ["timeout", "-k", "5", str(limit_s), sys.executable, "-c", BEGIN + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CLUSTER": cluster},
        capture_output=True,
        text=True,
        timeout=limit_s + 20,
    )
    left = gone(queue_processes())
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    assert left == []
    return done.stdout


def queue_processes() -> list[int]:
    """Of this test's clusters: they are below the raylets, which are below us."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "transfer_queue" in process.cmdline():
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_runner_with_the_only_cpu_starts_the_queue_for_workers_on_both_nodes_and_closes_it(cluster: str) -> None:
    found = program(cluster, """
@ray.remote(num_cpus=1)
class TaskRunner:
    def run(self):
        queue.init({"backend": {"SimpleStorage": {"num_data_storage_units": 8}}, "metrics": {"enabled": True}})
        try:
            workers = [Worker.options(resources=where).remote() for where in (HERE, THERE) for _ in range(4)]
            told = ray.get([worker.put.remote(number) for number, worker in enumerate(workers)], timeout=90)
            assert {url for url, _ in told} == {door().address.url} and len({pid for _, pid in told}) == 8
            sums = ray.get([worker.read.remote() for worker in workers], timeout=60)
            assert all(found == {str(number): 3.0 * number for number in range(8)} for found in sums), sums
            assert listed()["train"] == {str(number): {"number": number} for number in range(8)}
            where = queue.get_metrics_endpoint()
            import urllib.request
            assert "transfer_queue_up 1" in urllib.request.urlopen(f"http://{where}/metrics", timeout=20).read().decode()
        finally:
            began = time.monotonic()
            queue.close()
            took = time.monotonic() - began
        assert took < 15, took
        assert ray.get([worker.fails.remote() for worker in workers], timeout=60) == ["QueueGone"] * 8
        return door_is_gone()

def door_is_gone():
    try:
        door()
    except RuntimeError as error:
        return str(error)

print(ray.get(TaskRunner.remote().run.remote(), timeout=140))
assert ray.util.list_named_actors(all_namespaces=True) == []
""")
    assert "call transfer_queue.init() first" in found


def test_eight_that_come_at_once_start_one_queue_which_has_keys_beyond_loopback(cluster: str) -> None:
    program(cluster, """
workers = [Worker.options(resources=where).remote() for where in (HERE, THERE) for _ in range(4)]
told = ray.get([worker.put.remote(number) for number, worker in enumerate(workers)], timeout=90)
assert len({url for url, _ in told}) == 1, told
assert [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)] == ["AsyncFlowTransferQueue"]
assert sorted(listed()["train"]) == sorted(map(str, range(8)))  # this process never called init
address = door().address
from transfer_queue.security import is_loopback
assert is_loopback(address.url) == (address.security is None)
assert "server_secret" not in repr(address) and (address.security is None or address.security.server_secret is None)
""")


def test_a_queue_that_was_closed_is_followed_by_a_new_one_at_once_and_a_fork_joins_it(cluster: str) -> None:
    program(cluster, """
queue.init()
put("a")
first = door().address.url
queue.close()
queue.init()
assert listed() == {} and door().address.url != first
put("b")
child = os.fork()
if child == 0:
    try:
        assert list(listed()["train"]) == ["b"]
        put("c")
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
deadline = time.monotonic() + 60
while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
    time.sleep(0.05)
assert ended[0] == child and ended[1] == 0, ended
assert list(listed()["train"]) == ["b", "c"]
""")


@pytest.mark.parametrize("who", ["the runner", "the host", "the driver"])
def test_nobody_is_left_when_one_that_the_queue_lives_by_is_killed(cluster: str, who: str) -> None:
    """`program` looks for what is left."""
    code = """
@ray.remote(num_cpus=1)
class TaskRunner:
    def init(self):
        queue.init()
        put("a")
        return os.getpid()

runner = TaskRunner.remote()
pid = ray.get(runner.init.remote(), timeout=90)
worker = Worker.options(resources=THERE).remote()
assert ray.get(worker.fails.remote(), timeout=60) == "answered"
host = ray.get_actor("AsyncFlowTransferQueue", namespace="transfer_queue")
"""
    ends = {
        "the runner": "os.kill(pid, signal.SIGKILL)",
        "the host": "ray.kill(host)",
        "the driver": "print('up', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)",
    }
    after = """
deadline = time.monotonic() + 60
while (found := ray.get(worker.fails.remote(), timeout=60)) == "answered" and time.monotonic() < deadline:
    time.sleep(0.2)
assert found == "QueueGone", found
"""
    if who != "the driver":
        program(cluster, code + ends[who] + after)
        return
    with pytest.raises(AssertionError, match=r"-9|137"):
        program(cluster, code + ends[who])
    assert gone(queue_processes()) == []


def test_a_queue_that_cannot_be_started_says_why_and_the_next_one_can(cluster: str) -> None:
    program(cluster, """
import socket
taken = socket.socket()
taken.bind((ray.util.get_node_ip_address(), 0))
taken.listen()
try:
    queue.init({"metrics": {"enabled": True, "port": taken.getsockname()[1]}})
except RuntimeError as error:
    assert "could not be started" in str(error) and "metrics ended before it was up" in str(error), error
else:
    raise AssertionError("started")
taken.close()
queue.init()
assert listed() == {}
""")
