"""The trainer of the benchmark's run: it learns nothing, commits one group a step and publishes, at once or at every due moment of a turn."""

from __future__ import annotations

import threading
import time

import torch

from asyncflow.config.root import POLICY
from benchmarks.queue_bench.adapter import WAIT_S
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.weights_id import WeightsId
from transfer_queue.client import QueueClient

EPOCH = 0
TOUCHED = "model.norm.weight"  # what makes one version's bytes other than the next one's


class Trainer:
    """Its client and its publisher's belong to one thread at a time."""

    def __init__(self, client: QueueClient, endpoint: str, tensors: dict[str, torch.Tensor]) -> None:
        self._client, self._tensors = client, tensors
        self._publisher = PublisherClient(endpoint)
        self._topic = client.registration.topics[0].name
        self.version = 0
        self.published = 0

    def publish(self) -> None:
        """Of what was committed last. A version that finds no free slot stays pending until the next."""
        self._tensors[TOUCHED][0] = 1.0 + self.version * 2.0**-20
        self._publisher.publish(WeightsId(POLICY, EPOCH, self.version), self._tensors.items())
        self.published += 1

    def commit(self) -> bool:
        """One finished group that no step has had; False: within a second there was none."""
        taken = self._client.take(self._topic, "train", limit=1, step=self.version, wait_s=1.0).result(WAIT_S)
        if taken.lease >= 0:
            self.version = self._client.commit(self._topic, "train", POLICY, EPOCH, self.version, [taken.lease]).result(WAIT_S).version
        return taken.lease >= 0

    def close(self) -> None:
        self._publisher.close()
        self._client.close()


class Updates:
    """As a context: an update every so many seconds, in a thread of its own."""

    def __init__(self, trainer: Trainer, every_s: float) -> None:
        self._trainer, self._every_s = trainer, every_s
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="updates")

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        try:
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due += self._every_s
                if self._trainer.commit():
                    self._trainer.publish()
        except BaseException as error:  # carried to who measures
            self._error = error

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(4 * WAIT_S)
        if self._error is not None:
            raise self._error
