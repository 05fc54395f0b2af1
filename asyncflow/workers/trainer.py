"""The trainer: optimizer step → commit → publish, in this order, so that no receiver ever holds an uncommitted version."""

from __future__ import annotations

import time

from asyncflow.config import POLICY
from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.stage import Stage
from asyncflow.contracts.train import Training
from asyncflow.contracts.weights import WeightsId
from asyncflow.workers.batches import BatchStream
from asyncflow.workers.context import REPLY_S, WorkerContext
from asyncflow.workers.step_compute import StepCompute
from asyncflow.workers.step_metrics import StepMetrics
from checkpoint_engine.publisher_client import PublisherClient

EPOCH = 0  # of the run's weights: grows with every trainer recovery, which a later issue brings
IDLE_S = 30.0
SLOT_S = 1.0  # longest single wait for a free slot of the host cache


class TrainerWorker:
    """One rank. It owns the weights; the controller owns the version."""

    def __init__(self, context: WorkerContext, stage: Stage, training: Training) -> None:
        algorithm = context.config.algorithm
        self._context, self._stage = context, stage
        self._engine, self._training = training.engine, training
        canonical = context.config.staleness == 0
        self._stream = BatchStream(context, stage, algorithm.micro_batch_groups, canonical, on_wait=self._flush)
        self._publisher: PublisherClient | None = None
        self._version = 0
        self._done = False
        self._tokens = 0
        context.control.report_gauges(lambda: {"tokens": float(self._tokens)})

    def run(self) -> None:
        try:
            self._engine.initialize()
            if self._connect():
                self._publish()
                while not (self._context.control.stopping or self._done):
                    self._step()
                self._stay()
        finally:
            if self._publisher is not None:
                self._publisher.close()

    def _stay(self) -> None:
        """The last version is copied out, whatever blocks its slot; then stay until the run ends."""
        while not self._context.control.stopping:
            if self._flush():
                self._context.wait(IDLE_S)

    # -------------------------------------------------------------- one step

    def _step(self) -> None:
        """One global batch. Gradients are sums over rows until the whole batch is there; then they are divided once."""
        start_s = time.monotonic()
        metrics = StepMetrics(self._version, self._training.accumulate.counts)
        denominator = 0.0
        compute = StepCompute(self._context)
        with self._engine.train_mode():
            self._engine.optimizer_zero_grad()
            for batch in self._stream.micro_batches(self._version):
                with compute.part(batch.tokens):
                    denominator += self._accumulate(batch, metrics)
            if not self._stream.complete:
                self._done = self._stream.done
                return
            with compute.part(0):
                result = self._engine.optimizer_step(denominator)
                self._engine.lr_scheduler_step()
        self._context.costs.add(self._stage.name, compute.tokens, compute.seconds)
        info = metrics.summary(denominator) | {"grad_norm": result.grad_norm, "skipped": float(result.skipped), "lr": result.lr}
        info |= self._copy_out()
        self._commit(info | {"step_seconds": time.monotonic() - start_s})
        self._publish()

    def _accumulate(self, batch: StageBatch, metrics: StepMetrics) -> float:
        done = self._training.accumulate(batch)
        metrics.absorb(batch, done.metrics)
        self._tokens += int(batch.jagged("response_ids").lengths.sum())
        return done.denominator

    def _commit(self, info: dict[str, float]) -> None:
        context = self._context
        with context.clock.during("busy", "commit"):
            reply = context.client.commit(
                context.topic.name, self._stage.name, POLICY, EPOCH, self._version, self._stream.leases, info
            ).result(REPLY_S)
        self._version, self._done = reply.version, reply.done

    # -------------------------------------------------------------- weights

    def _connect(self) -> bool:
        """The publisher says in the roster where it listens. False when the run stops first."""
        name = f"publisher:{POLICY}"
        while not self._context.control.stopping:
            endpoint = self._context.control.directive.endpoints.get(name)
            if endpoint is not None:
                self._publisher = PublisherClient(endpoint, self._context.security, member=self._context.member)
                return True
            self._context.wait(IDLE_S)
        return False

    def _publish(self) -> None:
        """Copy the version out into the publisher's slot; its digest, announcement and travel are the publisher's work."""
        assert self._publisher is not None
        with self._context.clock.during("busy", "publish"), self._context.costs.call("publish"):
            self._publisher.publish(WeightsId(POLICY, EPOCH, self._version), self._engine.get_per_tensor_param)

    def _copy_out(self) -> dict[str, float]:
        """How the version before this one got into the publisher's slot; and of all so far, how many found no slot at once, how many never did
        because a newer one came first, and how often the publisher refused one for now."""
        assert self._publisher is not None
        late = {
            "copies_deferred": float(self._publisher.deferred),
            "copies_coalesced": float(self._publisher.coalesced),
            "copies_refused": float(self._publisher.refused),
        }
        return {"copy_seconds": self._publisher.copy_s, "copy_shared": float(self._publisher.path == "shared")} | late

    def _flush(self) -> bool:
        """Whenever the trainer has to wait anyway: copy out a version that found no slot before. True when nothing is pending.

        Never between an optimizer step and its publish: the pending version's tensors would be the next one's.
        """
        assert self._publisher is not None
        return self._publisher.pending is None or self._publisher.flush(SLOT_S)
