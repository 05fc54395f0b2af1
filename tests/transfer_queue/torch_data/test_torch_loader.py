"""Every row once: over any number of worker processes, with a producer at work, over several iterations, in batches of either kind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader
from torch_streams import CHUNK, Served, drained, leaves_nothing, response

from transfer_queue.torch_data import Batch, QueueDataset, QueueLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more processes than cores is what is tested


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served() as running:
        yield running


def dataset(served: Served, **settings: object) -> QueueDataset:
    return QueueDataset(served.url, "t", "reader", timeout_s=10.0, **{"limit": 7, **settings})


def counts(keys: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
    return Counter(keys)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_row_comes_once_while_a_producer_goes_on(served: Served, workers: int) -> None:
    done = served.consumer("reader").done_rows
    with leaves_nothing(served):
        keys = served.start_put(12 * CHUNK)
        loader = QueueLoader(dataset(served), num_workers=workers)
        assert drained(loader, len(keys)) == counts(keys)
        assert loader.refused == 0
    served.settle()
    reader = served.consumer("reader")
    assert (reader.done_rows, reader.ready_rows) == (done + len(keys), 0)


@pytest.mark.e2e
def test_workers_that_are_spawned_do_the_same(served: Served) -> None:
    with leaves_nothing(served):
        keys = served.fill(20)
        loader = QueueLoader(dataset(served), num_workers=2, multiprocessing_context="spawn")
        assert drained(loader, len(keys)) == counts(keys)


def test_workers_that_persist_serve_one_iteration_after_the_other_and_keep_nothing_between(served: Served) -> None:
    with leaves_nothing(served), QueueLoader(dataset(served), num_workers=2, persistent_workers=True, collate_fn=with_process) as loader:
        processes = set()
        for _ in range(3):
            keys = served.fill(15)
            seen: Counter[tuple[int, int]] = Counter()
            for batch, process in loader:
                processes.add(process)
                seen.update(batch.receipt.keys())
                if seen.total() == len(keys):
                    loader.acknowledge()
                    break
            assert seen == counts(keys)
            assert served.consumer("reader").leased_rows == 0
        assert len(processes) <= 2
        assert os.getpid() not in processes


def with_process(batch: Batch) -> tuple[Batch, int]:
    return batch, os.getpid()


def test_a_collate_function_is_called_in_the_workers_with_each_batch(served: Served) -> None:
    keys = served.fill(9)
    got: list[int] = []
    loader = QueueLoader(dataset(served), num_workers=2, collate_fn=padded)
    for table, process in loader:
        assert process != os.getpid()
        got += [int(row.max()) for row in table]
        if len(got) == len(keys):
            loader.acknowledge()
            break
    assert sorted(got) == sorted(max(response(*key), default=-1) for key in keys)


def padded(batch: Batch) -> tuple[torch.Tensor, int]:
    table = batch["response_ids"].padded(-1)
    return torch.nn.functional.pad(table, (0, 1), value=-1), os.getpid()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_by_tokens_never_have_more_and_lose_no_row(served: Served, workers: int) -> None:
    keys = served.fill(30)
    tokens: list[int] = []
    with leaves_nothing(served):
        loader = QueueLoader(dataset(served, max_tokens=20, token_columns=("prompt_ids", "response_ids")), num_workers=workers)
        seen = drained(loader, len(keys), lambda batch: tokens.append(batch["prompt_ids"].values.numel() + batch["response_ids"].values.numel()))
    assert seen == counts(keys)
    assert max(tokens) <= 20
    assert sum(tokens) == sum(len(response(*key)) + key[0] % 3 for key in keys)
    assert served.consumer("reader").ready_rows == 0


@pytest.mark.parametrize("workers", [None, 2])
def test_a_plain_dataloader_does_it_too_and_so_does_the_dataset_by_itself(workers: int | None) -> None:
    with Served() as own:
        keys = own.fill(10)
        own.stop_at(len(keys))
        source = dataset(own)
        seen: Counter[tuple[int, int]] = Counter()
        with leaves_nothing(own):
            for batch in source if workers is None else DataLoader(source, batch_size=None, num_workers=workers, in_order=False):
                seen.update(batch.receipt.keys())
        assert seen == counts(keys)
        assert own.consumer("reader").done_rows == len(keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_ends_the_iteration_in_every_worker_and_loses_no_acknowledgement(workers: int) -> None:
    with Served() as own:
        keys = own.fill(8)
        loader = QueueLoader(QueueDataset(own.url, "t", "reader", limit=3), num_workers=workers)
        seen: Counter[tuple[int, int]] = Counter()
        for batch in loader:
            seen.update(batch.receipt.keys())
            if seen.total() == len(keys):
                own.stop("enough for today")
        assert seen == counts(keys)
        assert loader.ended == "enough for today"
        assert loader.refused == 0
        assert own.consumer("reader").done_rows == len(keys)
        assert list(loader) == []  # nothing comes from a queue that is stopped
        assert list(QueueDataset(own.url, "t", "reader")) == []


def test_nothing_is_acknowledged_of_a_batch_at_which_the_loop_is_left(served: Served) -> None:
    keys = served.fill(6)
    loader = QueueLoader(dataset(served, limit=len(keys)))
    for _ in loader:
        break
    assert loader.ended is None
    assert served.consumer("reader").ready_rows == len(keys)
    assert drained(loader, len(keys)) == counts(keys)
    assert served.consumer("reader").ready_rows == 0
