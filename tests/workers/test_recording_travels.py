"""What a worker recorded reaches the controller once: through news that come in between, cancelled heartbeats, and its end."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from asyncflow.contracts.batch import StageBatch
from asyncflow.observe.trace import Trace
from asyncflow.workers.control import TRACE_S
from asyncflow.workers.result_writer import ResultWriter
from asyncflow.workers.row_writer import FinishedRow, RowWriter
from asyncflow.workers.stage import StageLoop
from tests.workers.test_rollout_worker import SHAPE, finished
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, Desk, desk, until
from transfer_queue.errors import QueueError
from transfer_queue.messages.members import MAX_TRACE_BYTES

SHORT_S = 0.05


def told_s(traces: list[Trace], what: str) -> float:
    return sum(span.end - span.start for trace in traces for span in trace.threads.get("main", []) if span.what == what) / 1e6


def test_no_moment_is_lost_or_told_twice_while_heartbeats_are_cancelled_for_news(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION) as found:
        context = found.context("rollout-0")
        start_s = time.monotonic()
        spent_s = 0.0
        for turn in itertools.count():
            began_s = time.monotonic()
            with context.clock.during("busy", "compute"):
                time.sleep(0.005)
            spent_s += time.monotonic() - began_s
            context.control.announce({"turn": str(turn)})  # pokes: the open heartbeat is cancelled, another follows at once
            if time.monotonic() - start_s > 3 * TRACE_S:
                break
        context.leave()
        found.contexts.clear()
        whole_s = time.monotonic() - start_s
        traces = found.traces("rollout-0#0")
    assert len(traces) >= 3
    assert traces[0].start == 0
    assert all(before.end == after.start for before, after in itertools.pairwise(traces))
    assert traces[-1].end / 1e6 == pytest.approx(whole_s, abs=SHORT_S + 0.2)
    assert spent_s <= told_s(traces, "compute") + SHORT_S
    assert told_s(traces, "compute") <= whole_s


def test_the_last_moments_of_a_worker_travel_when_it_leaves_and_when_it_raises(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION) as found:
        for name, end in (("rollout-0", "leave"), ("rollout-1", "fail")):
            context = found.context(name)
            with context.clock.during("busy", "compute"):
                time.sleep(SHORT_S)
            context.costs.add("train", 7.0, 2.0)
            context.leave() if end == "leave" else context.fail("ValueError: no", "traceback")
            last = found.traces(f"{name}#0")[-1]
            assert told_s(found.traces(f"{name}#0"), "compute") >= SHORT_S
            assert (last.costs["train"].size, last.costs["train"].seconds) == (7.0, 2.0)
        found.contexts.clear()


def test_lengths_are_those_of_rows_that_the_queue_took(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE) as found:
        found.put_prompts(2)
        context = found.context("rollout-0")
        leases = context.client.pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups
        writer = RowWriter(context, bound=16)
        writer.put([FinishedRow(finished(leases[0].gid, row), leases[0].fence, closes=4 if row == 3 else None) for row in range(4)])
        writer.drain()
        writer.put([FinishedRow(finished(leases[0].gid, 0), leases[0].fence - 1, closes=None)])  # of an attempt that is no more
        writer.drain()
        writer.close()
        context.leave()
        found.contexts.clear()
        traces = found.traces("rollout-0#0")
    assert [length for trace in traces for length in trace.lengths] == [1, 1, 1, 1]
    assert any(span.what == "put" for trace in traces for span in trace.threads.get("writer", []))


class Slow:
    """A stage that computes for a while."""

    def __call__(self, batch: StageBatch) -> dict[str, object]:
        time.sleep(SHORT_S)
        return {"rewards": np.zeros(len(batch), dtype=np.float32)}

    def load_weights(self, weights: object, tensors: object) -> None:
        raise AssertionError("it has no weights")

    def close(self) -> None:
        return


def test_a_stage_costs_its_computing_apart_from_its_reading_and_writing(tmp_path: Path) -> None:
    with desk(tmp_path, NO_EVALUATION, *SHAPE) as found:
        found.put_prompts(1)
        produce(found)
        context = found.context("scorer-0")
        writer = ResultWriter(context)
        loop = StageLoop(context, found.config.stage("reward"), Slow(), None, writer)
        while not loop.turn():
            context.wait(1.0)
        sums = context.costs.sums()
        loop.give_back()
        writer.close()
    assert sums["reward"].calls == sums["reward.io"].calls == 1
    assert sums["reward"].size == 4.0  # four responses of one token; the prompts are none of its inputs
    assert sums["reward"].seconds >= SHORT_S
    assert sums["reward.io"].seconds > 0.0


def produce(found: Desk) -> None:
    client = found.client("rollout-0", "rollout")
    lease = client.pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups[0]
    found.put_group(client, lease, 4)


def test_a_recording_beyond_its_bound_is_refused_with_the_rule_and_nothing_of_it_counts(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION) as found:
        client = found.client("rollout-0", "rollout")
        with pytest.raises(QueueError, match=rf"trace: {MAX_TRACE_BYTES + 1} bytes exceed {MAX_TRACE_BYTES}"):
            client.watch(trace=b"\x80" * (MAX_TRACE_BYTES + 1), endpoints={"mine": "tcp://127.0.0.1:1"}, wait_s=0.0).result(5.0)
        assert found.traces("rollout-0#0") == []
        directive = client.watch(wait_s=0.0).result(5.0).directive
        assert "mine" not in directive.endpoints
        until(lambda: "rollout-0#0" in found.queue.status().members, "it is a member as before")
