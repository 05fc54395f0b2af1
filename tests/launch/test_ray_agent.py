"""The agent as a plain object: it starts the real worker program, which dies with it. No Ray here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.ray import guard
from asyncflow.launch.ray.agent import Agent, Order
from asyncflow.launch.ray.nursery import search_path
from transfer_queue.__main__ import main as queue_command

ROOT = Path(__file__).parents[2]
NOBODY = "tcp://127.0.0.1:9"  # nobody answers there: the worker waits for the controller until it is ended


def order(folder: Path, **changes: object) -> Order:
    (folder / "logs").mkdir(exist_ok=True)
    args = WorkerArgs(role="scorer", name="scorer-0", controller=NOBODY, threads=2)
    given = {"args": args, "key": None, "log": str(folder / "logs/scorer-0.log"), "log_level": "info", "kind": "cuda"}
    return Order(**(given | {"search": tuple(search_path()), "directory": str(folder)} | changes))


def test_the_worker_sees_its_devices_and_threads_and_its_end_is_reported(tmp_path: Path) -> None:
    agent = Agent()
    pid = agent.start(order(tmp_path), ["3", "5"])
    child = psutil.Process(pid)
    assert child.cmdline()[1:8] == ["-P", "-m", "asyncflow.worker", "--attached", "--role", "scorer", "--name"]
    assert child.environ()["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert child.environ()["OMP_NUM_THREADS"] == "2"
    assert child.cwd() == str(tmp_path)
    agent.send(signal.SIGKILL, pid)
    assert agent.wait(pid) == -signal.SIGKILL
    again = agent.start(order(tmp_path, directory="/no/such/folder"), [])
    assert again != pid
    assert psutil.Process(again).environ()["CUDA_VISIBLE_DEVICES"] == ""
    agent.send(signal.SIGKILL, again)
    assert agent.wait(again) == -signal.SIGKILL


def words_of(pid: int) -> list[str]:
    """Its command line, once it is the worker's and no more that of the process which began it."""
    deadline = time.monotonic() + 20
    while "--key" not in (words := psutil.Process(pid).cmdline()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return words


def test_the_key_is_a_file_in_memory_that_only_its_owner_reads(tmp_path: Path) -> None:
    assert queue_command(["keys", str(tmp_path / "keys")]) == 0
    key = (tmp_path / "keys/client.key").read_bytes()
    agent = Agent()
    pid = agent.start(order(tmp_path, key=key), [])
    words = words_of(pid)
    path = Path(words[words.index("--key") + 1].replace("self", str(pid)))
    assert path.read_bytes() == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.readlink(path).startswith("/memfd:")
    agent.send(signal.SIGKILL, pid)
    agent.wait(pid)
    assert (tmp_path / "logs/scorer-0.log").read_text() == "", "it was a key, and it was read"
    pid = agent.start(order(tmp_path, key=b"no key"), [])
    assert agent.wait(pid) == 1
    assert "key file /proc/self/fd/" in (tmp_path / "logs/scorer-0.log").read_text()


def test_a_node_that_does_not_see_the_runs_directory_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run\.dir = .*/elsewhere: there is no .*/elsewhere/logs on the node of scorer-0"):
        Agent().start(order(tmp_path, log=str(tmp_path / "elsewhere/logs/scorer-0.log")), [])


def test_a_worker_does_not_outlive_its_agent(tmp_path: Path) -> None:
    order(tmp_path)
    code = f"""
import sys, threading
from pathlib import Path
from tests.launch.test_ray_agent import Agent, order
print(Agent().start(order(Path({str(tmp_path)!r})), []), flush=True)
threading.Event().wait()
"""
    agent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    worker = psutil.Process(int(agent.stdout.readline()))
    seen = threading.Event()
    until = 200
    while "--attached" in worker.cmdline() and not _watches(worker) and until:
        until -= 1
        seen.wait(0.05)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    agent.stdout.close()
    worker.wait(15)


def _watches(worker: psutil.Process) -> bool:
    """Whether the thread is there that waits for the end of standard input."""
    return worker.num_threads() > 1


def test_the_guard_ends_who_holds_its_folder_and_nobody_else(tmp_path: Path) -> None:
    """One that ignores the polite signal has a log there; another one has its log beside."""
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    inside, beside = tmp_path / "af", tmp_path / "af-2"
    processes = []
    for folder in (inside, beside):
        folder.mkdir()
        with (folder / "log").open("w") as log:
            processes.append(subprocess.Popen([sys.executable, "-c", code], stdout=log))
        while not (folder / "log").read_text():
            processes[-1].poll()
    guarding = subprocess.Popen([sys.executable, guard.__file__, str(inside)], stdin=subprocess.PIPE)
    assert guarding.poll() is None
    with (inside / "launcher.log").open("w"):  # as the launcher has: whoever holds the guard is spared
        guarding.communicate(timeout=20)
    assert guarding.returncode == 0
    assert processes[0].wait(5) == -signal.SIGKILL
    assert not inside.exists()
    assert processes[1].poll() is None
    processes[1].kill()
    processes[1].wait()
