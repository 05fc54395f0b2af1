"""The loop of every stage that is not a rollout or a trainer: fetch → compute → write back. Stages differ in data (`Stage`) and in `compute` only."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import GroupsFailed, Stage, StageCompute
from asyncflow.contracts.weights import WeightsId, to_model_version
from asyncflow.rewards.row_clock import Running, Stopped, told
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.follower import WeightsFollower
from asyncflow.workers.result_writer import Result, ResultWriter
from transfer_queue.client import Pending
from transfer_queue.columns import Jagged
from transfer_queue.errors import Gone
from transfer_queue.messages import OkTaken, Rows, unpacked

IDLE_S = 30.0  # longest single wait; every wake-up before it is an event


class StageLoop:
    """One stage in this process. At most one take is open; its loaded version is always today's.

    A full lease says that more rows wait: the next take is then opened before computing, so that its answer is there afterwards.
    """

    def __init__(
        self, context: WorkerContext, stage: Stage, compute: StageCompute, follower: WeightsFollower | None, writer: ResultWriter
    ) -> None:
        self._context, self._stage, self._compute, self.follower, self._writer = context, stage, compute, follower, writer
        self._topic = context.topic
        self._take: Pending[OkTaken] | None = None
        self.exhausted = False

    def turn(self) -> bool:
        """Serve one batch if there is one. Returns whether a take was answered, with or without rows: then the next is to be opened before anybody
        waits."""
        self.open()
        if not self.answered():
            return False
        self._accept(self._answer())
        return True

    def open(self) -> None:
        """Ask for rows, unless that is done, or there will be none."""
        if self._take is not None or self.exhausted or not self._context.control.accepting:
            return
        loaded = None
        if self.follower is not None:
            if self.follower.loaded is None:
                return
            loaded = self.follower.loaded.version
        stage = self._stage
        self._take = self._context.client.take(
            self._topic.name, stage.name, limit=stage.limit, at_least=stage.at_least, loaded=loaded, wait_s=IDLE_S
        )

    def answered(self) -> bool:
        return self._take is not None and self._take.done()

    def granted(self) -> int:
        """Lease of the take that was answered or cancelled; -1 when it brought no rows, or when none is open."""
        return -1 if self._take is None else self._take.result(REPLY_S).lease

    def cancel(self) -> None:
        """Have the open take answered now."""
        if self._take is not None:
            self._take.cancel()

    def recall(self) -> None:
        """The open take speaks of older weights: call it back; a grant that crossed the cancel is served with the weights it asked for."""
        self.cancel()
        if self._take is not None:
            self._accept(self._answer(), ahead=False)

    def load_weights(self, weights: WeightsId, tensors: Any) -> None:
        self._compute.load_weights(weights, tensors)

    def give_back(self) -> None:
        """Before leaving: call the open take back and return what it may have brought."""
        self.cancel()
        if self._take is not None and (taken := self._answer()).lease >= 0:
            self._release(taken)

    def close(self) -> None:
        self._compute.close()

    def _answer(self) -> OkTaken:
        assert self._take is not None, "asked only while a take is open"
        taken = self._take.result(REPLY_S)
        self._take = None
        return taken

    def _accept(self, taken: OkTaken, ahead: bool = True) -> None:
        """`ahead`: whether the next take may be opened before this one is computed."""
        self.exhausted = taken.done
        if taken.lease >= 0:
            with self._context.clock.during("busy", "read"):
                self._serve(taken, ahead)

    def _release(self, taken: OkTaken) -> None:
        self._context.client.release(self._topic.name, self._stage.name, taken.lease).result(REPLY_S)

    def _renew(self, lease: int, said: Stopped | Running) -> None:
        """While something is started that the compute needs, its rows' lease stands still, or others would compute the same rows."""
        within_s = said.within_s if isinstance(said, Stopped) else 0.0
        self._context.client.renew(self._topic.name, self._stage.name, lease, within_s).result(REPLY_S)

    def _serve(self, taken: OkTaken, ahead: bool) -> None:
        client, stage = self._context.client, self._stage
        start_s = time.perf_counter()
        try:
            batch = stage_batch(taken.rows, client.read(taken.rows, stage.inputs, self._topic))
            read_s = time.perf_counter()
            if ahead and units(taken.rows, stage) >= stage.limit:
                self.open()
            with self._context.clock.during("busy", "compute"), told(partial(self._renew, taken.lease)):
                outputs = self._compute(batch)
        except Gone:  # a group was dropped between the lease and the read: what is left of the lease is handed out again
            self._release(taken)
            return
        except GroupsFailed as failed:
            client.drop_groups(self._topic.name, failed.gids, failed.reason).result(REPLY_S)
            self._release(taken)
            return
        weights = to_model_version(self.follower.loaded) if self.follower is not None and self.follower.loaded is not None else None
        keys = taken.rows.keys()
        computed_s = time.perf_counter()
        self._writer.put(Result(stage.name, taken.lease, keys, outputs, weights))
        self._context.costs.add(stage.name, batch.tokens, computed_s - read_s)
        self._context.costs.add(f"{stage.name}.io", batch.tokens, time.perf_counter() - computed_s + read_s - start_s)


def units(rows: Rows, stage: Stage) -> int:
    """How many of the units that `Stage.limit` counts."""
    return rows.groups() if stage.unit == "group" else len(rows)


def stage_batch(rows: Rows, columns: dict[str, np.ndarray | Jagged | list[bytes]]) -> StageBatch:
    return StageBatch(
        gids=unpacked(rows.gids).astype(np.int64),
        rows=unpacked(rows.rows).astype(np.int32),
        oldest_versions=unpacked(rows.oldest).astype(np.int64),
        newest_versions=unpacked(rows.newest).astype(np.int64),
        columns=columns,
    )


class StageWorker:
    """A process that serves one or several stages (a scorer serves reward and advantage).

    It computes what it was given in the order in which it was given: the stall report takes the first lease of a member for the one that it is at,
    and no stage waits for ever for another.
    """

    def __init__(self, context: WorkerContext, loops: list[StageLoop], followers: list[WeightsFollower], writer: ResultWriter) -> None:
        self._context, self._loops, self._followers, self._writer = context, loops, followers, writer

    def run(self) -> None:
        try:
            while not self._context.control.stopping:
                self._context.control.check()
                self._writer.check()
                for follower in self._followers:
                    self._follow(follower)
                if not self._turn():
                    self._context.wait(IDLE_S)
            for loop in self._loops:
                loop.give_back()
        finally:
            self._writer.close()
            for loop in self._loops:
                loop.close()
            for follower in self._followers:
                follower.close()

    def _turn(self) -> bool:
        """Every stage has a take open; of those that were answered, the first lease is served. Returns whether there was one."""
        for loop in self._loops:
            loop.open()
        answered = [loop for loop in self._loops if loop.answered()]
        return bool(answered) and min(answered, key=StageLoop.granted).turn()

    def _follow(self, follower: WeightsFollower) -> None:
        """New weights go to every stage of this process that computes with the model, or the second would go on with the first ones."""
        follower.reconcile()
        if not follower.pending:
            return
        loops = [loop for loop in self._loops if loop.follower is follower]
        self._recall(loops)
        with self._context.clock.during("paused", "load"), self._context.costs.call("load"):
            follower.load_newest(*(loop.load_weights for loop in loops))

    @staticmethod
    def _recall(loops: list[StageLoop]) -> None:
        for loop in loops:
            loop.cancel()
        for loop in sorted(loops, key=StageLoop.granted):
            loop.recall()
