"""A real run around one rollout worker: controller, shard, publisher and worker are processes of their own; source and trainer are the benchmark."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from asyncflow.config.root import POLICY
from asyncflow.engines.model import hf_tensors, load_hf
from asyncflow.flow.core import core_config
from benchmarks.queue_bench.adapter import WAIT_S
from benchmarks.queue_bench.asking import Asked
from benchmarks.rollout_bench.scope import Scope
from benchmarks.rollout_bench.settings import READER, ROLLED, SEEN, run_config
from benchmarks.rollout_bench.updates import Trainer, Updates
from benchmarks.rollout_bench.workers import Worker
from transfer_queue.client import QueueClient
from transfer_queue.columns import Jagged
from transfer_queue.messages import OkTaken

LOOK_S = 1.0  # between two looks at whether the workers live
TURN_S = 900.0  # longest turn; the first has the start of vLLM in it
SERVERS = "benchmarks.queue_bench.servers"
KEPT = 16  # finished groups that stay untrained after a turn, so that the next one's updates are never short of any


class Turn(msgspec.Struct, frozen=True):
    seconds: float  # from the first prompt's put until the last group can be taken
    tokens: int
    rows: int
    versions: int  # of the weights, that made tokens


class Run:
    def __init__(self, stack: ExitStack, scope: Scope, model: Path, folder: Path) -> None:
        """Everything it starts ends with `stack`."""
        self._scope = scope
        config = run_config(scope, model, folder)
        controller, shard = (stack.enter_context(Asked(SERVERS, env={"OMP_NUM_THREADS": "1"})) for _ in range(2))
        url = controller.ask("controller", config=msgspec.to_builtins(core_config(config)), security=None)["endpoint"]
        shard.ask("shard", name="shard-0", url=url, security=None, settings={"capacity_bytes": config.queue.shard_bytes})
        self._workers = [stack.enter_context(Worker(role, url, folder)) for role in ("publisher", "rollout")]
        self._client = QueueClient.connect(url, name="source-0", role="source", timeout_s=WAIT_S)
        stack.callback(self._client.close)
        stack.callback(self._stop)
        self._topic = self._client.registration.topics[0]
        trains = QueueClient.connect(url, name="trainer-0", role="trainer", timeout_s=WAIT_S)
        self.trainer = Trainer(trains, self._publisher(), dict(hf_tensors(load_hf(model))))
        stack.callback(self.trainer.close)
        self.trainer.publish()
        self._prompts = self._finished = 0

    @property
    def next_gid(self) -> int:
        """Of the next turn's first group."""
        return self._prompts

    def _publisher(self) -> str:
        """Where it listens."""
        seen, deadline = -1, time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self._check()
            directive = self._client.watch(seen=seen, wait_s=LOOK_S).result(WAIT_S).directive
            if (endpoint := directive.endpoints.get(f"publisher:{POLICY}")) is not None:
                return endpoint
            seen = directive.revision
        raise TimeoutError(f"the publisher did not say where it listens within {WAIT_S:g} s")

    def _stop(self) -> None:
        with contextlib.suppress(Exception):  # a run that broke has said why
            self._client.stop("measured").result(WAIT_S)

    def _check(self) -> None:
        for worker in self._workers:
            worker.check()

    # ------------------------------------------------------------ a turn

    def turn(self, number: int, every_s: float | None = None) -> Turn:
        """`every_s`: seconds between two updates; None: there is none."""
        prompts = self._scope.prompts(number)
        with Updates(self.trainer, every_s) if every_s is not None else contextlib.nullcontext():
            begin = time.monotonic()
            self._put(prompts)
            lengths, versions = self._await(len(prompts))
            seconds = time.monotonic() - begin
        assert len(lengths) == self._scope.groups * self._scope.rows, f"{len(lengths)} rows came"
        assert lengths.min() >= 1
        self._finished += len(prompts)
        while self._finished - self.trainer.version > KEPT:
            assert self.trainer.commit()
        return Turn(seconds, int(lengths.sum()), len(lengths), len(np.unique(versions)))

    def _put(self, prompts: list[list[int]]) -> None:
        gids = range(self._prompts, self._prompts + len(prompts))
        columns = {"prompt_ids": Jagged.of(prompts, "int32"), "item": [b"-"] * len(prompts)}
        reply = self._client.put_prompts(self._topic.name, gids, columns, cursor=gids.stop, wait_s=WAIT_S)
        assert reply.cursor == gids.stop, "there is room for a turn's prompts"
        self._prompts = gids.stop

    def _await(self, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """Until all of them can be taken: tokens of each row, and the version of each token."""
        lengths, versions, left = list[np.ndarray](), list[np.ndarray](), groups
        deadline = time.monotonic() + TURN_S
        while left:
            taken = self._take(left, deadline)
            if len(rows := taken.rows):
                columns = self._client.read(rows, ROLLED, self._topic)
                lengths.append(columns["response_ids"].lengths)
                versions.append(columns["token_versions"].values)
                left -= rows.groups()
                self._client.write_back(self._topic.name, READER, taken.lease, rows.keys(), {SEEN: np.ones(len(rows), dtype=np.uint8)})
        return np.concatenate(lengths), np.concatenate(versions)

    def _take(self, groups: int, deadline: float) -> OkTaken:
        """The next that are finished, at most so many; none when nothing came for long."""
        pending = self._client.take(self._topic.name, READER, limit=groups, wait_s=WAIT_S)
        while not pending.done():
            self._check()
            self._client.poll(LOOK_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{groups} groups were not finished within {TURN_S:g} s")
        return pending.result(WAIT_S)
