"""vLLM's processes read new weights where the host cache has them, whichever way they came there: nothing is copied in between."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import PreTrainedModel
from vllm_harness import assert_greedy, greedy, llama, prompts, run, start_engine, weights_id

from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine
from asyncflow.engines.rollout.vllm.process import UpdateFailed, VllmProcess
from asyncflow.engines.rollout.vllm.staging import Staged
from checkpoint_engine.fanout import SyncReport
from checkpoint_engine.publisher import Publisher
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.slot import Lease

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
PATIENCE_S = 60.0
OURS = re.compile(r"^(\w+)-(\w+) .* (\d+) +/memfd:asyncflow-(\w+)", re.MULTILINE)  # addresses, inode, user


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRolloutEngine]:
    """Two processes that share a model."""
    engine = start_engine(tmp_path_factory.mktemp("pair"), llama(0, tied=False), tensor_parallel=2)
    yield engine
    engine.close()


@contextmanager
def publishing(transport: str) -> Iterator[tuple[Publisher, PublisherClient, list[SyncReport]]]:
    reports: list[SyncReport] = []
    publisher = Publisher("policy", transport=transport, on_sync=reports.append, bucket_bytes=4096)  # type: ignore[arg-type]
    over = threading.Event()
    serving = threading.Thread(target=publisher.run, args=(over,))
    serving.start()
    client = PublisherClient(publisher.endpoint)
    try:
        yield publisher, client, reports
    finally:
        client.close()
        over.set()
        serving.join(15)


def until(holds: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S:g} s"
        time.sleep(0.01)


def load_newest(engine: VllmRolloutEngine, receiver: Receiver) -> None:
    with receiver.get_weights() as held:
        engine.load_weights(held.weights, held)


def mapped(pid: int) -> dict[str, set[int]]:
    """Memory of ours that a process has mapped: inodes by user."""
    found: dict[str, set[int]] = {}
    for *_, inode, user in OURS.findall(Path(f"/proc/{pid}/maps").read_text()):
        found.setdefault(user, set()).add(int(inode))
    return found


@contextmanager
def watched(engine: VllmRolloutEngine) -> Iterator[dict[int, set[int]]]:
    """Memory of host caches that vLLM's worker processes have mapped at any time in here: inodes by process."""
    found: dict[int, set[int]] = {pid: set() for pid in processes(engine)}
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for pid, inodes in found.items():
                inodes.update(mapped(pid).get("weights", ()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(10)


def processes(engine: VllmRolloutEngine) -> list[int]:
    return [child.pid for pid in engine.pids for child in psutil.Process(pid).children(recursive=True)]


def assert_serves(engine: VllmRolloutEngine, model: PreTrainedModel, version: int) -> None:
    asked = prompts(6, seed=3)
    outcomes = run(engine, [greedy(f"v{version}-{i}", prompt) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        assert_greedy(model, prompt, outcomes[f"v{version}-{i}"])
        assert set(outcomes[f"v{version}-{i}"].versions) == {version}


@pytest.mark.parametrize("transport", ["collective", "pull"])
def test_two_processes_load_from_the_host_cache_what_came_by_broadcast_or_was_mapped(pair: VllmRolloutEngine, transport: str) -> None:
    first = 0 if pair.loaded is None else pair.loaded.version + 1
    models = [llama(40 + index, tied=False) for index in range(3)]
    with publishing(transport) as (publisher, client, reports):
        receivers = [Receiver(f"rollout-{index}#0", publisher.endpoint) for index in range(2)]  # the other one is another replica's
        if transport == "collective":
            until(lambda: len(publisher._fanout.members) == 2, "the group")
        seen: dict[int, set[int]] = {}
        for at, model in enumerate(models):
            client.publish(weights_id(first + at), hf_tensors(model), wait_s=PATIENCE_S)
            weights = client.wait_published(weights_id(first + at), PATIENCE_S)
            until(lambda weights=weights: all(receiver.latest() == weights for receiver in receivers), str(weights))
            with watched(pair) as found:
                load_newest(pair, receivers[0])
            for pid, inodes in found.items():
                assert inodes <= mapped(os.getpid())["weights"], "the very memory that the receiver has"
                seen.setdefault(pid, set()).update(inodes)
                assert not mapped(pid), "a mapping that outlives its load would go on under the next version in that slot"
            assert_serves(pair, model, first + at)
        assert sum(bool(inodes) for inodes in seen.values()) == 2, "both have mapped it"
        counters = receivers[0].counters
        if transport == "collective":
            assert counters.by_broadcast == len(models)
            assert [(report.weights.version, report.error, len(report.members)) for report in reports[-3:]] == [
                (first + at, "", 2) for at in range(len(models))
            ]
        else:
            assert counters.by_pull_shared == len(models)
        for receiver in receivers:
            receiver.close()
    assert_serves(pair, models[-1], first + len(models) - 1)


def test_a_set_that_does_not_fit_is_let_go_and_the_one_that_serves_is_kept(pair: VllmRolloutEngine) -> None:
    first = 0 if pair.loaded is None else pair.loaded.version + 1
    model = llama(50, tied=False)
    with publishing("pull") as (publisher, client, _):
        receiver = Receiver("rollout-0#0", publisher.endpoint, collective=False)
        sets = [dict(hf_tensors(model)), {"strange": next(iter(dict(hf_tensors(model)).values()))}, dict(hf_tensors(llama(51, tied=False)))]
        for at, tensors in enumerate(sets):
            client.publish(weights_id(first + at), tensors.items(), wait_s=PATIENCE_S)
            client.wait_published(weights_id(first + at), PATIENCE_S)
            until(lambda at=at: (newest := receiver.latest()) is not None and newest.version == first + at, "the version")
            if "strange" in tensors:
                with pytest.raises(ValueError, match="'strange' is unknown"):
                    load_newest(pair, receiver)
                assert_serves(pair, model, first)
            else:
                load_newest(pair, receiver)
        assert_serves(pair, llama(51, tied=False), first + 2)
        receiver.close()


def test_an_engine_that_dies_is_started_with_the_version_that_is_kept_though_newer_ones_came(pair: VllmRolloutEngine) -> None:
    first = 0 if pair.loaded is None else pair.loaded.version + 1
    model = llama(60, tied=False)
    with publishing("pull") as (publisher, client, _):
        receiver = Receiver("rollout-0#0", publisher.endpoint, collective=False, spare=1)
        for at in range(2):
            client.publish(weights_id(first + at), hf_tensors(model if at == 0 else llama(61, tied=False)), wait_s=PATIENCE_S)
            client.wait_published(weights_id(first + at), PATIENCE_S)
            until(lambda at=at: (newest := receiver.latest()) is not None and newest.version == first + at, "the version")
            if at == 0:
                load_newest(pair, receiver)
        psutil.Process(pair.pids[0]).kill()
        assert_serves(pair, model, first)
        load_newest(pair, receiver)
        assert_serves(pair, llama(61, tied=False), first + 1)
        receiver.close()


def test_with_one_slot_an_engine_that_dies_while_a_version_arrives_waits_and_starts_with_that_one(pair: VllmRolloutEngine) -> None:
    """By broadcast, into the memory of the version that served: what is on its way is held up half-way until the new engine asks for it."""
    first = 0 if pair.loaded is None else pair.loaded.version + 1
    models = [llama(70 + index, tied=False) for index in range(2)]
    with publishing("collective") as (publisher, client, _):
        receiver = Receiver("rollout-0#0", publisher.endpoint)
        until(lambda: len(publisher._fanout.members) == 1, "the group")
        client.publish(weights_id(first), hf_tensors(models[0]), wait_s=PATIENCE_S)
        until(lambda: receiver.latest() is not None, "the version")
        load_newest(pair, receiver)
        half, asked = threading.Event(), threading.Event()
        complete, await_lease = receiver._cache.complete, receiver._cache.await_lease

        def held_up(*arguments: Any) -> None:
            half.set()
            assert asked.wait(PATIENCE_S)
            complete(*arguments)

        def waiting(*arguments: Any) -> Lease | None:
            threading.Timer(0.5, asked.set).start()
            return await_lease(*arguments)

        receiver._cache.complete, receiver._cache.await_lease = held_up, waiting  # type: ignore[method-assign]
        client.publish(weights_id(first + 1), hf_tensors(models[1]), wait_s=PATIENCE_S)
        assert half.wait(PATIENCE_S)
        assert receiver.latest() is None
        psutil.Process(pair.pids[0]).kill()
        assert_serves(pair, models[1], first + 1)
        assert receiver.counters.by_broadcast == 2
        receiver.close()


def test_with_one_slot_a_load_that_fails_inside_vllm_is_made_good_by_a_new_engine(pair: VllmRolloutEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 0 if pair.loaded is None else pair.loaded.version + 1
    models = [llama(80 + index, tied=False) for index in range(2)]
    with publishing("pull") as (publisher, client, _):
        receiver = Receiver("rollout-0#0", publisher.endpoint, collective=False)
        for at, model in enumerate(models):
            client.publish(weights_id(first + at), hf_tensors(model), wait_s=PATIENCE_S)
            client.wait_published(weights_id(first + at), PATIENCE_S)
            until(lambda at=at: (newest := receiver.latest()) is not None and newest.version == first + at, "the version")
            if at == 0:
                load_newest(pair, receiver)
        failures, update, before = [1], VllmProcess.update, pair.pids

        def failing(process: VllmProcess, staged: Staged) -> None:
            if failures.pop() if failures else 0:
                raise UpdateFailed("injected")
            update(process, staged)

        monkeypatch.setattr(VllmProcess, "update", failing)
        load_newest(pair, receiver)
        assert pair.pids != before
        assert_serves(pair, models[1], first + 1)
        receiver.close()
