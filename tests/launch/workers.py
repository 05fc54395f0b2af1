"""Processes for launcher tests: real members of a real controller, each with one way to live or die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from asyncflow.contracts.worker import EXPELLED, WorkerArgs
from transfer_queue.client import QueueClient


def loyal(args: WorkerArgs) -> int:
    """Works until the run stops."""
    with QueueClient.connect(args.controller, name=args.name, role=args.role) as client:
        _until_stop(client)
        client.leave().result(5.0)
    return 0


def finisher(args: WorkerArgs, others: int) -> int:
    """Completes the run once `others` members are there; a stand-in for a trainer that committed its last batch."""
    with QueueClient.connect(args.controller, name=args.name, role=args.role) as client:
        seen = -1
        while len(client.status().result(5.0).status.members) < others:
            seen = client.watch(seen=seen, wait_s=1.0).result(5.0).directive.revision
        client.stop("completed").result(5.0)
        client.leave().result(5.0)
    return 0


def lingering(args: WorkerArgs) -> int:
    """Takes a while to leave after the stop, and leaves in order."""
    with QueueClient.connect(args.controller, name=args.name, role=args.role) as client:
        _until_stop(client)
        threading.Event().wait(1.0)
        client.leave().result(20.0)
    return 0


def suicidal(args: WorkerArgs, times: int, marker: str) -> int:
    """Is killed with SIGKILL by its own hand in its first `times` lives, completes the run in the one after."""
    with QueueClient.connect(args.controller, name=args.name, role=args.role) as client:
        with Path(marker).open("a") as file:
            file.write(f"{os.getpid()} {client.incarnation}\n")
        if len(Path(marker).read_text().splitlines()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        client.stop("completed").result(5.0)
        client.leave().result(5.0)
    return 0


def expelled(args: WorkerArgs, marker: str) -> int:
    """Was not heard of for too long in its first life, and says so as `asyncflow.worker` does; completes the run in the second."""
    with QueueClient.connect(args.controller, name=args.name, role=args.role) as client:
        if not Path(marker).exists():
            Path(marker).touch()
            return EXPELLED
        client.stop("completed").result(5.0)
        client.leave().result(5.0)
    return 0


def raising(args: WorkerArgs) -> int:
    """Fails as `asyncflow.worker` does."""
    client = QueueClient.connect(args.controller, name=args.name, role=args.role)
    client.failed(error="ValueError: no such luck", traceback="in line 1").result(5.0)
    return 1


def crashing(args: WorkerArgs) -> int:
    """Fails before it could tell anybody."""
    raise RuntimeError(f"{args.name} cannot start")


def deaf(args: WorkerArgs) -> int:
    """Neither leaves nor ends on SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with QueueClient.connect(args.controller, name=args.name, role=args.role):
        threading.Event().wait()
    return 0


def _until_stop(client: QueueClient) -> None:
    revision = -1
    while True:
        directive = client.watch(seen=revision, wait_s=2.0).result(30.0).directive
        revision = directive.revision
        if directive.state == "stop":
            return
