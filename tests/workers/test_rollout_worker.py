"""What a rollout worker does between two decode steps, and what it must not do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from asyncflow.contracts.rollout import Chunk, Request, Sampling, WeightsNotLoaded
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.task import Example
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.workers.evaluation import Evaluator
from asyncflow.workers.groups import Trajectory
from asyncflow.workers.prompts import PromptReader
from asyncflow.workers.rollout import RolloutWorker
from asyncflow.workers.row_writer import FinishedRow, RowWriter
from tests.engines.rollout.rollout_harness import load, new_engine, new_requests, run
from tests.workers.worker_desk import NO_EVALUATION, TRAIN_ONLY, Desk, desk, until
from transfer_queue.messages import ModelVersion

SHAPE = ("rollout.slots=4", "rollout.samples_per_prompt=4", "rollout.prompt_width=8", "rollout.response_width=32", "rollout.pull_groups=1")
WEIGHTS = WeightsId("policy", 0, 0)


def rollout_worker(found: Desk, engine: EmbeddedRolloutEngine, evaluator: Evaluator | None = None) -> RolloutWorker:
    worker = RolloutWorker(found.context("rollout-0"), engine, evaluator)
    worker._follower.loaded = engine.loaded  # there is no publisher here: the weights came by hand
    return worker


def test_slots_are_refilled_and_leases_renewed_while_other_rows_decode(tmp_path: Path) -> None:
    """Three groups fit at once. A fourth must come before the last of them is finished."""
    settings = (*SHAPE, "rollout.slots=12", "rollout.pull_groups=3", "rollout.progress_s=0.001")
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *settings) as found:
        found.put_prompts(8)
        worker = rollout_worker(found, new_engine(slots=12, kv_width=48))
        admitted: set[int] = set()  # since the book was empty
        emptied = progress = 0
        last = 0.0
        while emptied < 2 and not (len(admitted) > 3 and progress > 3):  # twice three groups; a ninth, which never comes, would be waited for
            worker._turn()
            admitted = (admitted | worker._book._groups.keys()) if len(worker._book) else set()
            emptied += not len(worker._book) and worker._tokens > 0
            progress += worker._progress_at != last
            last = worker._progress_at
        worker._writer.close()
    assert len(admitted) > 3
    assert progress > 3


def test_a_replica_takes_no_prompt_that_it_cannot_start(tmp_path: Path) -> None:
    """Rows that a pause has aborted come back: their slots are taken."""
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE) as found:
        found.put_prompts(8)
        engine = new_engine(slots=4, kv_width=48)
        worker = rollout_worker(found, engine)
        while not len(worker._book):
            worker._turn()
        engine.pause("abort")
        engine.resume()
        assert engine.capacity().free_slots == 4
        worker._request_prompts()
        assert worker._pull is None
        worker._turn()
        worker._turn()
        assert (engine.capacity().running, len(worker._book)) == (4, 1)
        worker._writer.close()


def take_prompt(worker: RolloutWorker) -> None:
    worker._request_prompts()
    assert worker._pull is not None
    while not worker._pull.done():
        worker._context.wait(1.0)
    worker._collect_pull()


def test_a_replica_asks_for_no_prompt_while_another_waits_for_its_prefill(tmp_path: Path) -> None:
    """Else whoever is first back from loading at a commit would take what the others could start at once."""
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.slots=12") as found:
        found.put_prompts(8)
        engine = new_engine(slots=12, kv_width=48)
        worker = rollout_worker(found, engine)
        take_prompt(worker)
        assert engine.capacity().queued == 4
        worker._request_prompts()
        assert worker._pull is None
        worker._absorb(worker._meter.chunks())
        worker._request_prompts()
        assert worker._pull is not None
        worker._give_back_pull()
        worker._writer.close()


def test_an_engine_that_takes_groups_in_parts_is_given_one_as_soon_as_a_slot_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next only when all of its rows have started, so that less than a group waits."""
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.slots=6") as found:
        found.put_prompts(8)
        engine = new_engine(slots=6, kv_width=48)
        worker = rollout_worker(found, engine)
        take_prompt(worker)
        worker._absorb(worker._meter.chunks())
        assert (engine.capacity().running, engine.capacity().free_slots) == (4, 2)
        worker._request_prompts()
        assert worker._pull is None, "a whole group has no room"
        monkeypatch.setattr(engine, "capacity", lambda: msgspec.structs.replace(type(engine).capacity(engine), parts=True))
        take_prompt(worker)
        worker._absorb(worker._meter.chunks())
        assert (engine.capacity().running, engine.capacity().queued, len(worker._book)) == (6, 2, 2)
        worker._request_prompts()
        assert worker._pull is None, "two rows wait for a slot"
        worker._writer.close()


def test_the_queue_hears_at_once_from_which_weights_a_group_without_a_token_starts(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "rollout.slots=12", "rollout.progress_s=1000") as found:
        found.put_prompts(8)
        worker = rollout_worker(found, new_engine(slots=12, kv_width=48))
        worker._progress_at = time.monotonic()
        take_prompt(worker)
        worker._renew()
        assert worker._progress is None, "nothing is due"
        assert [(item.tokens, item.oldest_version) for item in worker._book.progress(loaded=3)] == [(0, 3)]
        worker._absorb(worker._meter.chunks())
        assert [item.oldest_version for item in worker._book.progress(loaded=3)] == [0]
        worker._follower = Newer()
        worker._load_weights()
        worker._renew()
        assert worker._progress is not None
        worker._writer.close()


class Newer:
    """A follower with weights that are not loaded yet."""

    loaded, pending = WEIGHTS, True

    def load_newest(self, *loads: object) -> bool:
        return True


QUESTIONS = [Example(question="", prompt_ids=list(request.token_ids[:8]), item=b"%d" % i, answer_ids=[]) for i, request in enumerate(new_requests(6))]


def test_what_an_engine_still_says_of_aborted_requests_is_no_answer(tmp_path: Path) -> None:
    with desk(tmp_path, *SHAPE) as found:
        engine = new_engine()
        engine.generate(new_requests(3))
        engine.chunks()
        engine.abort(["r0", "r1", "r2"])  # their last chunks come with the next call
        evaluator = Evaluator(found.context("rollout-0"), QUESTIONS, DeadlineScorer(lambda item, answer: float(int(item) % 2), 5.0))
        assert evaluator.run(engine, WEIGHTS)
        until(lambda: bool(found.events("report")), "the result")
        assert found.events("report")[0].data["accuracy"] == 0.5


def test_an_evaluation_that_was_cut_off_is_not_done(tmp_path: Path) -> None:
    """SIGTERM to the marked replica: the duty goes to another one."""
    with desk(tmp_path, *SHAPE, "evaluation.every=5") as found:
        engine = new_engine()
        context = found.context("rollout-0")
        worker = RolloutWorker(context, engine, Evaluator(context, QUESTIONS, DeadlineScorer(lambda item, answer: 1.0, 5.0)))
        worker._follower.loaded = engine.loaded
        context.control.report_loaded("policy", WEIGHTS)
        found.client("publisher-0").published(ModelVersion("policy", 0, 0)).result(5.0)
        until(lambda: context.control.duty == "evaluate", "the duty")
        context.control.request_stop()
        worker._serve_duty()
        worker._writer.close()
        context.leave()
        found.contexts.clear()
        second = found.context("rollout-1")
        second.control.report_loaded("policy", WEIGHTS)
        until(lambda: second.control.duty == "evaluate", "the duty again")
    assert not [event for event in found.events("member") if event.reason == "duty_done:evaluate"]


class StartedAnew(EmbeddedRolloutEngine):
    """After a few decode steps it goes on with newer weights, as one does that died and whose weights were not in memory any more."""

    left = 5

    def chunks(self, wait_s: float = 0.0) -> list[Chunk]:
        self.left -= 1
        if self.left == 0:
            load(self, 1, seed=5)
        return super().chunks(wait_s)


def test_an_evaluation_whose_engine_went_on_with_newer_weights_is_done_again_and_says_so_of_none_else(tmp_path: Path) -> None:
    with desk(tmp_path, *SHAPE) as found:
        engine = new_engine()
        engine.__class__ = StartedAnew
        answers: list[object] = []
        evaluator = Evaluator(found.context("rollout-0"), QUESTIONS, DeadlineScorer(lambda item, answer: answers.append(answer) or 1.0, 5.0))
        assert not evaluator.run(engine, WEIGHTS)
        assert not answers
        assert engine.capacity().running == 0, "nothing of it goes on"
        assert engine.loaded == WeightsId("policy", 0, 1)
        assert evaluator.run(engine, engine.loaded)
        until(lambda: any(event.reason == "evaluation" for event in found.events("report")), "the result")
        (result,) = (event for event in found.events("report") if event.reason == "evaluation")
    assert (result.data["version"], result.data["items"], len(answers)) == (1, len(QUESTIONS), len(QUESTIONS))
    fresh = new_engine(seed=5)
    assert answers == [answer for _, answer in sorted(answered(fresh).items())], "of version 1 alone"


def answered(engine: EmbeddedRolloutEngine) -> dict[int, list[int]]:
    """Greedy, by question."""
    requests = [Request(str(i), tuple(question.prompt_ids), Sampling(0.0, ()), 0, 32) for i, question in enumerate(QUESTIONS)]
    return {int(name): outcome.tokens for name, outcome in run(engine, requests).items()}


def test_a_long_evaluation_gives_signs_of_life_and_an_answer_that_cannot_be_scored_counts_as_wrong(tmp_path: Path) -> None:
    def score(item: bytes, answer: object) -> float:
        if item == b"3":
            threading.Event().wait(2.0)
        return 1.0

    with desk(tmp_path, *SHAPE) as found:
        context = found.context("rollout-0")
        limits = msgspec.structs.replace(context.config.limits, stall_s=0.004)  # for the worker only: a queue with it would stop at once
        context.config = msgspec.structs.replace(context.config, limits=limits)
        assert Evaluator(context, QUESTIONS, DeadlineScorer(score, 0.1)).run(new_engine(), WEIGHTS)
        until(lambda: any(event.reason == "evaluation" for event in found.events("report")), "the result")
        reports = found.events("report")
    assert reports[0].reason == "evaluating"
    assert reports[-1].data["unscored"] == 1
    assert reports[-1].data["accuracy"] == pytest.approx(5 / 6)


def test_a_prompt_that_is_too_long_is_dropped_counted_and_replaced(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "batch_size=4") as found:
        found.put_prompts(6, lengths=(4, 9))
        context = found.context("rollout-0")
        leases = context.client.pull(found.topic, loaded=0, limit=4, wait_s=5.0).result(10.0).groups
        prompted = PromptReader(context).read(leases)
        assert [each.lease.gid for each in prompted] == [0, 2]
        until(lambda: found.queue.status().topics[0].ledger.get("dropped:prompt_too_long") == 2, "the count")
        assert found.queue.status().topics[0].open == 2


def test_only_prompts_that_are_too_long_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncflow.workers.prompts.MOST_IN_A_ROW", 2)
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE, "batch_size=4") as found:
        found.put_prompts(4, lengths=(9,))
        context = found.context("rollout-0")
        leases = context.client.pull(found.topic, loaded=0, limit=4, wait_s=5.0).result(10.0).groups
        with pytest.raises(ValueError, match=r"rollout\.prompt_width = 8: 4 prompts in a row are longer"):
            PromptReader(context).read(leases)


def test_late_rows_of_a_replaced_attempt_do_not_take_the_new_ones_with_them(tmp_path: Path) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE) as found:
        found.put_prompts(1)
        context = found.context("rollout-0")
        lease = context.client.pull(found.topic, loaded=0, limit=1, wait_s=5.0).result(10.0).groups[0]
        writer = RowWriter(context, bound=16)
        rows = [FinishedRow(finished(0, row), lease.fence, closes=4 if row == 3 else None) for row in range(4)]
        writer.put([FinishedRow(finished(0, 2), lease.fence - 1, closes=None), *rows])
        writer.drain()
        assert writer.take_closed() == []
        writer.close()
        until(lambda: found.queue.status().topics[0].ledger["complete"] == 1, "the group")


def finished(gid: int, row: int) -> Trajectory:
    return Trajectory(gid, row, prompt=[2, 3], token_ids=[4], logprobs=[-1.0], versions=[0], finish="stop")


class FailsOnce:
    """A follower with weights that the engine cannot load at first."""

    loaded, pending = WEIGHTS, True
    loads = 0

    def load_newest(self, *loads: object) -> bool:
        self.loads += 1
        if self.loads == 1:
            raise WeightsNotLoaded("policy@0.1 could not be loaded")
        return True


def test_after_a_load_that_failed_in_the_engine_rows_go_on_and_it_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with desk(tmp_path, *TRAIN_ONLY, NO_EVALUATION, *SHAPE) as found:
        found.put_prompts(1)
        worker = rollout_worker(found, new_engine(slots=4, kv_width=48))
        take_prompt(worker)
        worker._follower = follower = FailsOnce()  # type: ignore[assignment]
        worker._load_weights()
        assert ": policy@0.1 could not be loaded; it is tried again" in capsys.readouterr().err
        assert worker._meter.chunks()
        worker._load_weights()
        assert follower.loads == 2
        worker._writer.close()
