"""What the trainer counts, how it waits, and what it and its publisher leave on disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from asyncflow.contracts.batch import StageBatch
from asyncflow.contracts.weights import WeightsId
from asyncflow.rewards.verdict import Verdict
from asyncflow.workers.batches import BatchStream
from asyncflow.workers.publisher import PublisherWorker
from asyncflow.workers.step_metrics import StepMetrics
from checkpoint_engine.export import read_weights_id
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, desk
from transfer_queue.columns import Jagged
from transfer_queue.errors import Gone
from transfer_queue.messages import ModelVersion, Rows, unpacked


def two_rows() -> StageBatch:
    versions = np.array([3, 3])
    batch = StageBatch(np.array([7, 7]), np.array([0, 1], dtype=np.int32), versions, versions)
    batch.columns = {"token_versions": Jagged.of([[3, 3], [3]], "int32"), "rewards": np.array([0.0, 1.0], dtype=np.float32)}
    return batch


@pytest.mark.parametrize(("denominator", "loss"), [(4.0, 0.5), (0.0, None)])
def test_sums_are_divided_counts_are_not_and_a_batch_of_masked_rows_has_no_mean(denominator: float, loss: float | None) -> None:
    metrics = StepMetrics(4, frozenset({"masked_rows"}))
    metrics.absorb(two_rows(), {"loss": 2.0, "masked_rows": 2.0})
    summary = metrics.summary(denominator)
    assert summary.get("loss") == loss
    assert summary["masked_rows"] == 2.0
    assert (summary["staleness_max"], summary["rows"]) == (1.0, 2.0)


def test_verdicts_are_counted_by_name_where_the_trainer_reads_them() -> None:
    metrics = StepMetrics(4, frozenset())
    for verdicts in ([Verdict.RIGHT, Verdict.TIMEOUT], [Verdict.RIGHT, Verdict.UNFINISHED]):
        batch = two_rows()
        batch.columns["verdict"] = np.array(verdicts, dtype=np.uint8)
        metrics.absorb(batch, {})
    summary = metrics.summary(1.0)
    counts = {name: value for name, value in summary.items() if name.startswith("verdict_")}
    assert counts == {f"verdict_{verdict.name.lower()}": 0.0 for verdict in Verdict} | {
        "verdict_right": 2.0,
        "verdict_timeout": 1.0,
        "verdict_unfinished": 1.0,
    }
    plain = StepMetrics(4, frozenset())
    plain.absorb(two_rows(), {})
    assert not any(name.startswith("verdict") for name in plain.summary(1.0))


def test_a_version_that_waits_for_a_slot_is_tried_again_at_once_and_not_after_the_wait_for_data(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION) as found:
        context = found.context("trainer-0")
        tried: list[float] = []

        def flush() -> bool:
            """Finds no slot twice; then there is one, and the run stops."""
            tried.append(time.monotonic())
            if len(tried) == 3:
                context.control.request_stop()
            return len(tried) >= 3

        stream = BatchStream(context, found.config.stage("train"), micro_groups=2, canonical=False, on_wait=flush)
        assert list(stream.micro_batches(0)) == []
        assert len(tried) == 3
        assert tried[2] - tried[0] < 5


@pytest.mark.parametrize("canonical", [True, False])
def test_a_batch_of_which_a_shard_took_something_is_given_back_and_filled_again(
    tmp_path: Path, canonical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a lease is computed with before all of it is read, so nothing is in the gradient twice."""
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, "batch_size=4", "rollout.samples_per_prompt=2") as found:
        context, rollout = found.context("trainer-0"), found.client("rollout-0", "rollout")
        rollout.published(ModelVersion("policy", 0, 0)).result(5.0)
        found.put_prompts(4)
        for lease in rollout.pull(found.topic, loaded=0, limit=4).result(5.0).groups:
            found.put_group(rollout, lease, 2)
        read, reads = context.client.read, 0

        def fails_once(rows: Rows, *more: Any) -> dict[str, Any]:
            nonlocal reads
            reads += 1
            if reads == 2:
                raise Gone(unpacked(rows.gids).tolist())
            return read(rows, *more)

        monkeypatch.setattr(context.client, "read", fails_once)
        stream = BatchStream(context, found.config.stage("train"), micro_groups=2, canonical=canonical, on_wait=lambda: True)
        batches = list(stream.micro_batches(0))
        assert reads == (4 if canonical else 3)
        assert sorted(gid for batch in batches for gid in set(batch.gids.tolist())) == [0, 1, 2, 3]
        assert stream.complete
        reply = context.client.commit(found.topic, "train", "policy", 0, 0, stream.leases).result(5.0)
        assert (reply.version, reply.trained) == (1, 4)


def test_exports_reach_or_pass_every_multiple_and_are_called_by_what_they_hold(tmp_path: Path) -> None:
    base = tmp_path / "model"
    base.mkdir()
    (base / "config.json").write_text("{}")
    with desk(tmp_path, NO_EVALUATION, "weights.export_every=2") as found:
        publisher = Publisher(model="policy", transport="pull")
        over = threading.Event()
        serving = threading.Thread(target=publisher.run, args=(over,))
        serving.start()
        worker = PublisherWorker(found.context("publisher-0"), "policy", base, publisher)
        trainer = PublisherClient(publisher.endpoint)

        def publish(version: int) -> None:
            trainer.publish(WeightsId("policy", 0, version), [("weight", torch.full((4,), float(version)))], wait_s=5.0)
            trainer.wait_published(WeightsId("policy", 0, version), 5.0)

        publish(0)
        worker._export_if_due()
        worker._export_if_due()
        publish(1)
        worker._export_if_due()  # 2 is not reached
        publish(2)
        publish(3)
        worker._export_if_due()  # 2 was passed before this loop could look
        publish(5)
        worker._export(WeightsId("policy", 0, 4))  # seen as 4, but 5 is served by now
        trainer.close()
        over.set()
        serving.join(10)
    exports = {path.name: read_weights_id(path) for path in sorted((tmp_path / "weights").iterdir())}
    assert {name: weights.version for name, weights in exports.items()} == {"policy-0.0": 0, "policy-0.3": 3, "policy-0.5": 5}
