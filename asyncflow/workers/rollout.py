"""The rollout worker: pulls prompts when slots are free, decodes, takes new weights between two decode steps, and puts rows as they finish.

It never talks to another worker, and its slots never wait for a reward, a put or a transfer.
"""

from __future__ import annotations

import sys
import time

from asyncflow.contracts.rollout import Chunk, RolloutEngine, Sampling, WeightsNotLoaded
from asyncflow.contracts.weights import WeightsId
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.decode_meter import DecodeMeter
from asyncflow.workers.evaluation import Evaluator
from asyncflow.workers.follower import WeightsFollower
from asyncflow.workers.groups import GroupBook, OpenGroup
from asyncflow.workers.prompts import PromptReader
from asyncflow.workers.row_writer import FinishedRow, RowWriter
from transfer_queue.client import Pending
from transfer_queue.messages import OkProgress, OkPulled

IDLE_S = 30.0  # longest single wait; every wake-up before it is an event


class RolloutWorker:
    def __init__(self, context: WorkerContext, engine: RolloutEngine, evaluator: Evaluator | None) -> None:
        settings = context.config.rollout
        self._context, self._engine, self._evaluator = context, engine, evaluator
        self._topic = context.topic.name
        self._rows_per_group = context.topic.rows_per_group
        sampling = Sampling(settings.temperature, settings.stop_token_ids)
        self._book = GroupBook(context.config.run.seed, sampling, settings.response_width, self._rows_per_group)
        self._follower = WeightsFollower(context, "policy")
        self._prompts = PromptReader(context)
        self._meter = DecodeMeter(engine, context.costs)
        self._writer = RowWriter(context, bound=4 * settings.slots)
        self._pull: Pending[OkPulled] | None = None
        self._pull_loaded: WeightsId | None = None  # what the open pull speaks of
        self._progress: Pending[OkProgress] | None = None
        self._progress_at = 0.0
        self._progress_fences: dict[int, int] = {}
        self._exhausted = False  # no prompt will ever come again
        self._tokens = 0
        context.control.report_gauges(lambda: {"tokens": float(self._tokens)})

    def run(self) -> None:
        """Until the run stops: after the last prompt a replica may still be asked to evaluate."""
        self._engine.start()
        try:
            while not self._context.control.stopping:
                self._turn()
            self._give_back_pull()
            self._leave_groups()
        finally:
            self._writer.close()
            self._follower.close()
            self._engine.close()

    def _turn(self) -> None:
        """One round: reconcile with the desired state, then one decode step, or a wait when there is nothing to decode."""
        self._context.control.check()
        self._context.pump()
        self._follower.reconcile()
        self._load_weights()
        if self._follower.loaded is not None:
            self._collect_pull()
            self._request_prompts()
            self._serve_duty()
        self._forget_cancelled()
        if len(self._book):
            with self._context.clock.during("busy", "compute"):
                self._absorb(self._meter.chunks())
            self._renew()
            self._await_engine()
        else:
            self._context.wait(IDLE_S)

    def _await_engine(self) -> None:
        """While an engine that computes elsewhere has nothing new, only a message, new weights or the next renewal is worth a turn. It is busy."""
        if (wait_s := self._engine.next_chunk_s()) > 0 and len(self._book):
            if self._progress is None:  # else the reply that is awaited comes first, and wakes us
                until_renewal_s = self._progress_at + self._context.config.rollout.progress_s - time.monotonic()
                wait_s = min(wait_s, max(until_renewal_s, 0.0))
            self._context.wait(min(wait_s, IDLE_S), "busy", "compute")

    # -------------------------------------------------------------- weights

    def _load_weights(self) -> None:
        marked = self._context.control.duty is not None and self._follower.loaded is not None
        if marked or not self._follower.pending:
            return  # a marked replica keeps what it has until it has evaluated
        mode = self._context.config.rollout.pause_mode
        if mode == "abort":
            self._give_back_pull()  # else it would be the first to get what is handed back
        kept: list[OpenGroup] = []
        with self._context.clock.during("paused", "load"), self._context.costs.call("load"):
            self._engine.pause(mode)
            try:
                if mode == "abort":
                    kept = self._hand_back()
                self._follower.load_newest(self._engine.load_weights)
            except WeightsNotLoaded as error:
                print(f"{self._context.member}: {error}; it is tried again", file=sys.stderr)  # how often is the engine's to limit
            finally:
                self._engine.resume()  # also after a failed load: the old version goes on serving
        for group in kept:
            self._engine.generate(self._book.keep(group))
        self._progress_at = 0.0  # groups without a token start from these weights now: the queue is told, or it would count them too old

    def _hand_back(self) -> list[OpenGroup]:
        """What a pause has aborted goes back to the queue with all that it has, so that others can go on with it while this replica loads. Returns
        the groups that it does not take, for the run drains: they go on here."""
        self._take_in(self._engine.chunks())
        self._writer.drain()  # rows of these groups that come after their hand-back would be refused
        self._forget_cancelled()
        groups, running = self._book.hand_back()
        self._engine.abort(running)
        self._engine.chunks()  # their last ones: the same requests may come again
        if not groups:
            return []
        reply = self._context.client.hand_back(self._topic, [left.item for left in groups], [left.data for left in groups])
        return [left.group for left in groups if left.item.gid in reply.kept]

    def _leave_groups(self) -> None:
        """This replica leaves a run that goes on, and where unfinished responses change replicas anyway, others go on with its own. Whatever is not
        handed back is generated anew: the queue takes it from who left."""
        control, abort = self._context.control, self._context.config.rollout.pause_mode == "abort"
        if abort and len(self._book) and control.directive.state == "run":
            try:
                self._engine.pause("abort")
                self._hand_back()
            except RuntimeError as error:  # of an engine that died too often, a controller that is gone: this worker leaves in any case
                print(f"{self._context.member}: {error}; its unfinished groups are generated anew", file=sys.stderr)

    @property
    def _loaded(self) -> WeightsId:
        loaded = self._engine.loaded
        assert loaded is not None, "asked only after the first load"
        return loaded

    # -------------------------------------------------------------- prompts

    def _request_prompts(self) -> None:
        """Keep one pull open while a whole group can start (with fewer slots than rows: while all are free; in parts: while a slot is free) and no
        request waits for its prefill, so that no prompt is hoarded: replicas that ask at a commit share what it admits, whoever is the first to be
        back from loading. The pull's loaded version must be today's: an outdated one is called back first."""
        if self._pull is not None and (self._pull_loaded != self._loaded or self._context.control.duty is not None):
            self._give_back_pull()
        if self._pull is not None:
            return
        capacity = self._engine.capacity()
        free = min(capacity.free_slots, capacity.slots - self._book.unfinished)
        barred = self._exhausted or self._context.control.duty is not None or not self._context.control.accepting
        needed = 1 if capacity.parts else min(self._rows_per_group, capacity.slots)
        if barred or capacity.queued or free < needed:
            return
        limit = min(max(1, free // self._rows_per_group), self._context.config.rollout.pull_groups)
        self._pull_loaded = loaded = self._loaded
        self._pull = self._context.client.pull(self._topic, loaded.version, limit, wait_s=IDLE_S, epoch=loaded.epoch)

    def _collect_pull(self) -> None:
        if self._pull is not None and self._pull.done():
            reply = self._pull.result(REPLY_S)
            self._pull = None
            self._admit(reply)

    def _give_back_pull(self) -> None:
        """Every request gets exactly one reply: after a cancel it is either empty or a grant, and a grant is served."""
        if self._pull is not None:
            self._pull.cancel()
            reply = self._pull.result(REPLY_S)
            self._pull = None
            self._admit(reply)

    def _admit(self, reply: OkPulled) -> None:
        self._exhausted = reply.done
        if not reply.groups:
            return
        self._forget([(lease.gid, fence) for lease in reply.groups if (fence := self._book.fence(lease.gid)) is not None])
        requests = []
        for prompted in self._prompts.read(reply.groups):
            requests += self._book.admit(prompted.lease, prompted.prompt, prompted.left)
        self._engine.generate(requests)

    # -------------------------------------------------------------- rows

    def _absorb(self, chunks: list[Chunk]) -> None:
        """Requests that the engine has aborted by itself go on here."""
        self._take_in(chunks)
        if rest := [request for chunk in chunks if (request := self._book.resume(chunk)) is not None]:
            self._engine.generate(rest)

    def _take_in(self, chunks: list[Chunk]) -> None:
        finished = []
        for chunk in chunks:
            self._tokens += len(chunk.token_ids)
            trajectory = self._book.absorb(chunk)
            if trajectory is not None:
                fence = self._book.fence(trajectory.gid)
                assert fence is not None, "the group of a row that just finished is open"
                group = self._book.close_if_complete(trajectory.gid)
                finished.append(FinishedRow(trajectory, fence, closes=group.total if group is not None else None))
        if finished:
            self._writer.put(finished)

    def _renew(self) -> None:
        """Leases are renewed by progress, so a hung engine loses them. The reply names groups that are no longer ours."""
        if self._progress is not None:
            if not self._progress.done():
                return
            closed = self._progress.result(REPLY_S).closed
            self._forget([(gid, self._progress_fences[gid]) for gid in closed])
            self._progress = None
        now = time.monotonic()
        if now - self._progress_at >= self._context.config.rollout.progress_s:
            self._progress_at = now
            items = self._book.progress(self._loaded.version)
            self._progress_fences = {item.gid: item.fence for item in items}
            self._progress = self._context.client.progress(self._topic, items)

    def _forget_cancelled(self) -> None:
        self._forget(self._context.control.take_cancelled() + self._writer.take_closed())

    def _forget(self, attempts: list[tuple[int, int]]) -> None:
        if ids := self._book.forget(attempts):
            self._engine.abort(ids)

    # -------------------------------------------------------------- evaluation

    def _serve_duty(self) -> None:
        """Marked to evaluate (decision 9): no new prompt, finish what runs, evaluate with the loaded weights, then go on."""
        if self._context.control.duty is None or self._evaluator is None or self._pull is not None or len(self._book):
            return
        self._writer.drain()
        with self._context.clock.during("paused", "evaluate"):
            evaluated = self._evaluator.run(self._engine, self._loaded)
        if evaluated:
            self._context.control.duty_done("evaluate")
