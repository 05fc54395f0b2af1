"""Terminal consumers commit, consumers with outputs write back; ranks share steps or rows. What the settings or the topic do not allow is refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch_streams import BATCH, ROWS, TOPIC, Served, response

from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError
from transfer_queue.torch_data import OpenStep, QueueDataset, QueueLoader
from transfer_queue.torch_data.reader import OVER
from transfer_queue.torch_data.settings import Source
from transfer_queue.torch_data.view import View


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def trainer(served: Served, **settings: Any) -> QueueDataset:
    return QueueDataset(served.url, TOPIC, "trainer", timeout_s=10.0, **{"limit": 3, **settings})


def rows_of(groups: int) -> Counter[tuple[int, int]]:
    return Counter((gid, row) for gid in range(groups) for row in range(ROWS))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_commits_each_step_and_the_end_of_the_topic_ends_the_iteration(served: Served, workers: int) -> None:
    served.fill(2 * BATCH + 2)
    served.close_topic(2 * BATCH + 2)  # the last step is short
    loader = QueueLoader(trainer(served), num_workers=workers)
    seen: Counter[tuple[int, int]] = Counter()
    steps: list[int | None] = []
    for batch in loader:
        seen.update(batch.receipt.keys())
        if loader.step_complete:
            steps.append(loader.step)
            committed = loader.commit({"loss": 0.5})
            assert committed.version == len(steps)
            assert loader.step is None
    assert steps == [0, 1, 2]
    assert seen == rows_of(2 * BATCH + 2)
    assert loader.ended == OVER
    assert served.status().ledger["trained"] == 2 * BATCH + 2


def test_in_a_plain_dataloader_whoever_collects_the_receipts_of_a_step_can_commit_it(served: Served) -> None:
    served.fill(2 * BATCH)
    served.close_topic(2 * BATCH)
    step, seen = OpenStep(), Counter[tuple[int, int]]()
    with QueueClient.connect(served.url, name="committer-0", role="rollout", timeout_s=10.0) as client:
        for batch in DataLoader(trainer(served), batch_size=None, num_workers=2, in_order=False):
            seen.update(batch.receipt.keys())
            step.add(batch.receipt)
            if step.complete:
                assert step.number is not None
                client.commit(TOPIC, "trainer", "policy", 0, step.number, step.leases).result(10.0)
                step.forget()
        client.leave().result(5.0)
    assert seen == rows_of(2 * BATCH)
    assert served.status().version == 2


def test_a_trainer_that_starts_later_learns_the_step_from_the_queue(served: Served) -> None:
    served.fill(2 * BATCH)
    for step in range(2):
        loader = QueueLoader(trainer(served))
        for _ in loader:
            if loader.step_complete:
                assert loader.step == step
                loader.commit()
                break


def test_asking_for_more_than_a_step_without_a_commit_is_an_error_and_no_wait(served: Served) -> None:
    served.fill(BATCH)
    loader = QueueLoader(trainer(served))
    with pytest.raises(RuntimeError, match="step 0 of 'trainer' is complete and not committed"):
        for _ in loader:
            pass
    with pytest.raises(RuntimeError, match="nothing of a step has come"):
        loader.commit()
    assert served.status().ledger["complete"] == BATCH  # its leases were given back


def test_a_step_whose_worker_died_is_not_committed(served: Served) -> None:
    served.fill(BATCH)
    loader = QueueLoader(trainer(served))
    for batch in loader:
        if loader.step_complete:
            served.client.member_dead(batch.receipt.member, "killed by the test").result(5.0)
            with pytest.raises(QueueError, match="stale_incarnation"):
                loader.commit()
            break
    assert served.status().version == 0


def together(count: int, body: Callable[[int], None]) -> None:
    """`body(rank)` in threads; the first exception is raised."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            body(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_ranks_that_share_steps_get_equal_parts_and_each_row_once(served: Served) -> None:
    served.fill(3 * BATCH)
    served.close_topic(3 * BATCH)
    seen, meet, gathered = [Counter[tuple[int, int]](), Counter[tuple[int, int]]()], threading.Barrier(2), [[], []]

    def rank(number: int) -> None:
        loader = QueueLoader(trainer(served, limit=1, share=(number, 2), name=f"trainer-{number}"))
        for batch in loader:
            seen[number].update(batch.receipt.keys())
            if loader.step_complete:
                gathered[number] = loader.leases
                meet.wait(20)
                loader.commit(leases=[*gathered[0], *gathered[1]])  # the second one is a repeat
                meet.wait(20)

    together(2, rank)
    assert seen[0] + seen[1] == rows_of(3 * BATCH)
    assert seen[0].total() == seen[1].total()
    assert served.status().version == 3


def test_a_last_step_that_cannot_be_shared_out_is_refused(served: Served) -> None:
    served.fill(BATCH - 1)
    served.close_topic(BATCH - 1)
    with pytest.raises(QueueError, match="close the topic with a multiple of its batch"):
        next(iter(QueueLoader(trainer(served, share=(0, 2)))))


def test_loaders_of_several_ranks_share_the_rows_of_a_consumer_each_row_once(served: Served) -> None:
    keys = served.start_put(60)
    seen, lock = Counter[tuple[int, int]](), threading.Lock()

    def rank(number: int) -> None:
        for batch in QueueLoader(QueueDataset(served.url, TOPIC, "reader", limit=4, name=f"reader-{number}")):
            with lock:
                seen.update(batch.receipt.keys())
                if seen.total() == len(keys):
                    served.settle()
                    served.stop("all have come")

    together(3, rank)
    assert seen == Counter(keys)
    assert served.consumer("reader").done_rows == len(keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_outputs_are_written_back_and_the_trainer_gets_them(workers: int) -> None:
    with Served("scored") as served:
        served.fill(BATCH)
        scorer = QueueLoader(QueueDataset(served.url, TOPIC, "scorer", limit=3), num_workers=workers)
        written = 0
        for batch in scorer:
            assert scorer.write_back({"score": batch["response_ids"].lengths.to(torch.float32)}) == []
            written += len(batch)
            if written == BATCH * ROWS:
                break
        assert written == served.consumer("scorer").done_rows == BATCH * ROWS
        loader = QueueLoader(trainer(served, limit=BATCH))
        batch = next(iter(loader))
        keys = batch.receipt.keys()
        assert batch["score"].tolist() == [len(response(*key)) for key in keys]


def test_a_batch_whose_outputs_are_owed_is_not_passed_over() -> None:
    with Served("scored") as served:
        served.fill(2)
        loader = QueueLoader(QueueDataset(served.url, TOPIC, "scorer", limit=1))
        with pytest.raises(RuntimeError, match=r"its rows wait for columns \['score'\]"):
            for _ in loader:
                pass
        assert served.consumer("scorer").ready_rows == 2 * ROWS
        with pytest.raises(RuntimeError, match="there is no batch"):
            loader.write_back({"score": np.zeros(1, "float32")})


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "1 <= at_least <= limit"),
        ({"limit": 3, "at_least": 4}, "1 <= at_least <= limit"),
        ({"max_tokens": 10}, "go together"),
        ({"token_columns": ["response_ids"]}, "go together"),
        ({"max_tokens": 0, "token_columns": ["response_ids"]}, "max_tokens >= 1"),
        ({"share": (2, 2)}, "0 <= rank < ranks"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QueueDataset("tcp://127.0.0.1:1", TOPIC, "reader", **settings)


@pytest.mark.parametrize(
    ("consumer", "settings", "message"),
    [
        ("nobody", {}, r"is not one of topic 't', which has \['plain', 'weighed', 'writes', 'trains', 'replays'\]"),
        ("weighed", {}, "needs weights"),
        ("replays", {}, "a batch of a loader has no place for them"),
        ("plain", {"share": (0, 2)}, "is not terminal"),
        ("trains", {"share": (0, 2)}, "at most as many ranks as the window's batch has groups"),
        ("plain", {"max_tokens": 9, "token_columns": ("number",)}, r"'number' is no per_token input of 'plain', which has \['ids'\]"),
        ("writes", {"max_tokens": 9, "token_columns": ("ids",)}, "a lease is written back as a whole"),
    ],
)
def test_consumers_that_the_settings_do_not_fit_are_refused(consumer: str, settings: dict[str, Any], message: str) -> None:
    columns = (
        m.Column("ids", "int32", "per_token", "rollout"),
        m.Column("number", "int32", "scalar", "rollout"),
        m.Column("made", "int32", "scalar", "writes"),
    )
    consumers = (
        m.Consumer("plain", inputs=("ids", "number")),
        m.Consumer("weighed", inputs=("ids",), needs_weights=True),
        m.Consumer("writes", inputs=("ids",), outputs=("made",)),
        m.Consumer("trains", inputs=("ids",), unit="group", terminal=True),
        m.Consumer("replays", inputs=("ids",), unit="group", terminal=True, replay=m.Replay(groups=1, keep_groups=1)),
    )
    spec = m.TopicSpec("t", "policy", columns, consumers, m.Window(1, None))
    with pytest.raises(ValueError, match=message):
        View(Source(url="tcp://127.0.0.1:1", topic="t", consumer=consumer, name="x", role="x", **settings), spec)


@pytest.mark.parametrize("option", [{"batch_size": 3}, {"shuffle": True}, {"in_order": True}, {"drop_last": False}])
def test_options_that_are_the_datasets_to_decide_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="a stream has no order to sample from"):
        QueueLoader(QueueDataset("tcp://127.0.0.1:1", TOPIC, "reader"), **option)


def test_the_rank_names_the_members_unless_a_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert QueueDataset("tcp://127.0.0.1:1", TOPIC, "reader").source.name == "reader-0"
    monkeypatch.setenv("RANK", "3")
    assert QueueDataset("tcp://127.0.0.1:1", TOPIC, "reader").source.name == "reader-3"
    assert QueueDataset("tcp://127.0.0.1:1", TOPIC, "reader", name="mine").source.name == "mine"
