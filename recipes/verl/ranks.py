"""The trainer's other ranks: processes of this machine that end with it, told call by call what rank 0 does.

`python -m recipes.verl.ranks DESCRIPTOR` is such a process. What it is told comes over a pair of sockets that nobody else has, so it may be pickled.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncflow.config import RunConfig
from asyncflow.worker import end
from transfer_queue.operation.parent import end_when_gone

ANSWER_S = 600.0  # most seconds of one call on another rank: building the engine is one, a global batch's backward pass another

LAST_WORDS_S = 1.0  # for the answer of a rank that failed, once rank 0 failed as well


class RankFailed(RuntimeError):
    """Another rank raised, or is gone."""


class OtherRanks:
    """Ranks 1 to N - 1. A call is told to all of them, then rank 0 makes it too, then their answers are taken. They end when this process does."""

    def __init__(self, config: RunConfig, model_dir: Path, ranks: int, port: int) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._links: list[multiprocessing.connection.Connection] = []
        for rank in range(1, ranks):
            ours, theirs = socket.socketpair()
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            command = [sys.executable, "-m", "recipes.verl.ranks", str(theirs.fileno())]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL))
            theirs.close()
            link = multiprocessing.connection.Connection(ours.detach())
            link.send((config.encode(), str(model_dir), rank, ranks, port, int(os.environ.get("OMP_NUM_THREADS", "1"))))
            self._links.append(link)

    def tell(self, method: str, *arguments: list[Any]) -> None:
        """`arguments`: for each, one value a rank, that of rank 0 left out."""
        for index, link in enumerate(self._links):
            try:
                link.send((method, [values[index] for values in arguments]))
            except OSError as error:
                raise self._gone(index, method) from error

    def answers(self, method: str) -> list[Any]:
        """What the call that was told last gave on each of them. Raises RankFailed."""
        return [self._answer(index, method) for index in range(len(self._links))]

    @contextlib.contextmanager
    def beside(self, method: str) -> Iterator[None]:
        """What rank 0 does of the call that was told last. Where it fails and another one did too, that one's failure is raised: a rank that is gone
        makes the collectives of all others fail, and they know no more than that."""
        try:
            yield
        except Exception as error:  # raised again, or the other rank's in its place
            ready = multiprocessing.connection.wait(self._links, LAST_WORDS_S)
            for index in (index for index, link in enumerate(self._links) if link in ready):
                try:
                    self._answer(index, method)
                except RankFailed as failed:
                    raise failed from error
            raise

    def _answer(self, index: int, method: str) -> Any:
        link = self._links[index]
        try:
            if not link.poll(ANSWER_S):
                raise RankFailed(f"rank {index + 1} of the trainer gave no answer to {method} within {ANSWER_S:g} s; the run cannot go on")
            ended_well, answer = link.recv()
        except (EOFError, OSError) as error:
            raise self._gone(index, method) from error
        if not ended_well:
            raise RankFailed(f"rank {index + 1} of the trainer failed in {method}; the run cannot go on:\n{answer}")
        return answer

    def _gone(self, index: int, method: str) -> RankFailed:
        return RankFailed(f"rank {index + 1} of the trainer ended during {method} (exit code {self._processes[index].poll()}); the run cannot go on")


def serve(link: multiprocessing.connection.Connection) -> None:
    """Until the other end is closed."""
    encoded, model_dir, rank, ranks, port, threads = link.recv()
    config = RunConfig.decode(encoded)
    from recipes.verl.conf import verl_conf

    verl_conf(config)  # says which platform verl takes, before it is imported
    import torch

    torch.set_num_threads(threads)
    from recipes.verl.rank import Rank

    store = torch.distributed.TCPStore("127.0.0.1", port, ranks, is_master=False)
    own: Rank | None = None
    while True:
        try:
            method, arguments = link.recv()
        except EOFError:
            return
        try:
            if method == "build":
                own, answer = Rank(config, Path(model_dir), rank, ranks, store), None
            elif method == "weights":
                assert own is not None
                answer = sum(1 for _ in own.weights())
            else:
                answer = getattr(own, method)(*arguments)
        except Exception:  # the boundary: rank 0 tells it, with its traceback
            link.send((False, traceback.format_exc()))
            return
        link.send((True, answer))


if __name__ == "__main__":
    descriptor = int(sys.argv[1])
    end_when_gone(os.pidfd_open(os.getppid()))
    serve(multiprocessing.connection.Connection(descriptor))
    end(0)
