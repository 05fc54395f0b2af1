"""Graders write a score to every row; a trainer takes whole batches and commits them. Both compare every byte that they read."""

from __future__ import annotations

import numpy as np

from tests.soak import content
from tests.soak.records import Batch, Committed, GaveUp, Graded, Wrong
from tests.soak.topics import BATCH, MADE, STALENESS, TRAINED
from tests.soak.work import WAIT_S, Worker
from transfer_queue import messages as m
from transfer_queue.errors import Gone

LIMIT = 8  # rows
LOST = "shard_lost"  # why a trainer drops what it cannot read


def grade(worker: Worker) -> None:
    while True:
        taken = worker.ask(worker.client.take, worker.topic, "grade", LIMIT, wait_s=WAIT_S)
        if taken.done:
            return
        if taken.lease < 0:
            continue
        try:
            keys = worker.read(taken.rows, MADE)
        except Gone:  # the controller has them made again, or drops them
            worker.ask(worker.client.release, worker.topic, "grade", taken.lease)
            continue
        _write_back(worker, taken, np.array([content.score(key) for key in keys]))


def _write_back(worker: Worker, taken: m.OkTaken, scores: np.ndarray) -> None:
    rows = taken.rows.keys()
    reply = worker.patient(worker.client.write_back, worker.topic, "grade", taken.lease, rows, {"score": scores})
    closed = set(reply.closed)
    worker.note(Graded(rows=[row for row in rows if row[0] not in closed]))


def train(worker: Worker) -> None:
    """The last version is published by who looks at what is left of the run: with that it ends."""
    client, model, step = worker.client, worker.spec.model, worker.clock()
    while True:
        filling = Filling(worker, step)
        if not filling.fill():
            return
        worker.note(Batch(step=step, rows=filling.rows))
        commit = worker.ask(client.commit, worker.topic, "train", model, 0, step, filling.leases)
        worker.note(Committed(step=step, version=commit.version))
        if commit.done:
            return
        step = commit.version
        worker.ask(client.published, m.ModelVersion(model, 0, step))


class Filling:
    """The batch of one step, while it is taken."""

    def __init__(self, worker: Worker, step: int) -> None:
        self._worker, self._step = worker, step
        self.leases: list[int] = []
        self.rows: list[tuple[int, int, content.Key]] = []

    def fill(self) -> bool:
        """Until it is whole, which the queue says how many groups are. False: the topic is over."""
        worker, size = self._worker, BATCH
        while (groups := len({gid for gid, _, _ in self.rows})) < size:
            taken = worker.ask(worker.client.take, worker.topic, "train", size - groups, step=self._step, wait_s=WAIT_S)
            if taken.done:
                return False
            if taken.version != self._step:
                raise RuntimeError(f"{worker.topic}: the clock is {taken.version} and not {self._step}, and nobody else commits")
            size = taken.batch
            if taken.lease >= 0:
                self.leases.append(taken.lease)
                self._read(taken.rows)
        return True

    def _read(self, rows: m.Rows) -> None:
        while len(rows):
            try:
                keys = self._worker.read(rows, TRAINED)
            except Gone as gone:
                rows = self._give_up(rows, gone.gids)
                continue
            oldest = int(m.unpacked(rows.oldest).min())
            if oldest < self._step - STALENESS:
                self._worker.note(Wrong(what=f"{self._worker.topic}: step {self._step} gets rows of version {oldest}"))
            self.rows += [(gid, row, key) for (gid, row), key in zip(rows.keys(), keys, strict=True)]
            return

    def _give_up(self, rows: m.Rows, gids: list[int]) -> m.Rows:
        """Those that are left when groups that cannot be read are dropped."""
        worker = self._worker
        worker.ask(worker.client.drop_groups, worker.topic, gids, LOST)
        worker.note(GaveUp(gids=gids))
        return rows.picked(~np.isin(m.unpacked(rows.gids), gids))
