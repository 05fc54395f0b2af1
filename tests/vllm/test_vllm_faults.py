"""vLLM's processes die, hang or fail to load: they are started anew, every request goes on, and the old weights serve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
from leftovers import traces
from vllm_harness import (
    WIDTH,
    Outcomes,
    assert_greedy,
    collect,
    finish_all,
    greedy,
    load,
    log_probs,
    prompts,
    qwen2,
    sampled,
    start_engine,
    until_running,
    weights_id,
)

from asyncflow.contracts.rollout import WeightsNotLoaded
from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.vllm.engine import EngineCrashed, VllmRolloutEngine
from asyncflow.engines.rollout.vllm.traces import FOLDER, SOCKETS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
RESTARTS = 5


@pytest.fixture(scope="module")
def before() -> set[str]:
    """What earlier tests have left."""
    return traces()


@pytest.fixture(scope="module")
def mortal(before: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRolloutEngine]:
    """The tests of this file use its restarts up, in their order."""
    engine = start_engine(tmp_path_factory.mktemp("mortal"), qwen2(0), restarts=RESTARTS, restart_window_s=3600.0)
    yield engine
    engine.close()


def test_a_killed_engine_is_started_anew_and_every_request_goes_on_where_it_was(mortal: VllmRolloutEngine) -> None:
    with pytest.raises(ValueError, match="no weights are loaded"):
        mortal.generate([greedy("early", (3,))])
    load(mortal, qwen2(1))
    model = qwen2(2)
    version = load(mortal, model)
    asked = prompts(20, seed=1, length=6)
    requests = [sampled(f"r{i}", prompt, seed=i, tokens=90) for i, prompt in enumerate(asked)]
    outcomes: Outcomes = {}
    mortal.generate(requests)
    until_running(mortal, 6, outcomes)
    killed = mortal.pids
    workers = psutil.Process(killed[0]).children()
    os.kill(killed[0], signal.SIGKILL)
    finish_all(mortal, outcomes)
    assert mortal.pids != killed
    assert psutil.wait_procs(workers, timeout=60)[1] == [], "worker processes outlive their engine process"
    assert mortal.loaded == weights_id(version)
    for request in requests:
        outcome = outcomes[request.id]
        assert len(outcome.finishes) == 1
        assert outcome.finishes == ["stop"] or len(outcome.tokens) == request.budget_left
        assert set(outcome.versions) == {version}
        expected = log_probs(model, request.token_ids, outcome.tokens)[np.arange(len(outcome.tokens)), outcome.tokens]
        np.testing.assert_allclose(outcome.logprobs, expected, atol=1e-4)


def test_a_load_that_fails_inside_vllm_leaves_the_old_weights_serving(mortal: VllmRolloutEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen2(3)
    version = load(mortal, model)
    asked = prompts(12, seed=2, length=6)
    outcomes: Outcomes = {}
    mortal.generate([greedy(f"g{i}", prompt, tokens=60) for i, prompt in enumerate(asked)])
    until_running(mortal, 3, outcomes)
    with monkeypatch.context() as patch:  # the fault: our own check lets an incomplete set pass
        patch.setattr("asyncflow.engines.rollout.vllm.expected.ExpectedWeights.check", lambda self, staged: None)
        incomplete = [(name, tensor) for name, tensor in hf_tensors(qwen2(4)) if "layers.1.mlp" not in name]
        with pytest.raises(WeightsNotLoaded, match="got nothing"):
            mortal.load_weights(weights_id(version + 1), incomplete)
    assert mortal.loaded == weights_id(version)
    finish_all(mortal, outcomes)
    for i, prompt in enumerate(asked):
        assert_greedy(model, prompt, outcomes[f"g{i}"])
        assert set(outcomes[f"g{i}"].versions) == {version}
    assert load(mortal, qwen2(5)) == version + 1


def test_a_killed_worker_process_is_noticed_too(mortal: VllmRolloutEngine) -> None:
    model = qwen2(6)
    load(mortal, model)
    prompt = prompts(1)[0]
    worker = max(psutil.Process(mortal.pids[0]).children(), key=lambda child: child.memory_info().rss)
    mortal.generate([greedy("g", prompt, tokens=100)])
    worker.kill()
    assert_greedy(model, prompt, finish_all(mortal)["g"])


def test_an_engine_that_hangs_is_ended_and_its_requests_go_on(mortal: VllmRolloutEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = qwen2(8), prompts(1)[0]
    version = load(mortal, model)
    hung, outcomes = mortal.pids, Outcomes()
    os.kill(hung[0], signal.SIGSTOP)
    mortal.generate([greedy("h", prompt, tokens=50)])
    with monkeypatch.context() as patch:
        patch.setattr(mortal, "_settings", msgspec.structs.replace(mortal._settings, silent_s=3.0))
        while mortal.pids == hung:
            collect(mortal.chunks(wait_s=1.0), outcomes)
    outcome = finish_all(mortal, outcomes)["h"]
    assert_greedy(model, prompt, outcome)
    assert set(outcome.versions) == {version}


def test_an_engine_that_is_killed_while_it_is_asked_something_is_not_waited_for(mortal: VllmRolloutEngine) -> None:
    """vLLM never ends a call that its processes were to answer when they died."""
    model, prompt = qwen2(9), prompts(1)[0]
    killed, began_s = mortal.pids, time.monotonic()
    os.kill(killed[0], signal.SIGSTOP)  # so that it is asked, and does not answer
    death = threading.Timer(2.0, os.kill, (killed[0], signal.SIGKILL))
    death.start()
    version = load(mortal, model)
    assert time.monotonic() - began_s < mortal._settings.reply_s - 30
    death.join(10.0)
    assert mortal.pids != killed
    mortal.generate([greedy("k", prompt, tokens=20)])
    outcome = finish_all(mortal)["k"]
    assert_greedy(model, prompt, outcome)
    assert set(outcome.versions) == {version}


def test_an_engine_that_dies_too_often_ends_with_its_name_and_cause(mortal: VllmRolloutEngine, before: set[str]) -> None:
    mortal.generate([greedy(f"g{i}", prompt, tokens=100) for i, prompt in enumerate(prompts(100))])  # seconds of work: they do not end before it dies
    os.kill(mortal.pids[0], signal.SIGKILL)
    with pytest.raises(EngineCrashed, match=rf"vLLM of rollout-0 ended: .*SIGKILL; after {RESTARTS} restarts"):
        finish_all(mortal)
    with pytest.raises(RuntimeError, match="cannot be used: vLLM of rollout-0 ended"):
        mortal.chunks()
    mortal.close()
    mortal.close()
    assert traces() - before == set()
    with pytest.raises(RuntimeError, match="cannot be used: it was closed"):
        mortal.chunks()


def test_two_processes_share_a_tied_model_end_with_a_rollout_worker_that_is_killed_and_leave_nothing(tmp_path: Path) -> None:
    before = traces()
    command = [sys.executable, str(Path(__file__).with_name("owner.py")), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        line = next((line for line in owner.stdout if line.startswith("PIDS")), None)
        assert line is not None, "it ended before it decoded: its error is above"
        processes = [psutil.Process(int(pid)) for pid in line.split()[1:]]
        owner.kill()
    assert len(processes) >= 4
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert alive == []
    assert traces() - before == set()


def test_processes_that_are_not_ready_in_time_are_ended_with_an_error_and_leave_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    before, files = set(psutil.Process().children(recursive=True)), traces()
    with pytest.raises(RuntimeError, match=r"vLLM of rollout-0: it did not start within 1 s"):
        start_engine(tmp_path_factory.mktemp("late"), qwen2(0), start_s=1.0)
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=30)
    assert [process for process in alive if "resource_tracker" not in " ".join(process.cmdline())] == []
    assert traces() - files == set()
    assert not Path(os.environ.get(SOCKETS, "")).name.startswith(FOLDER), "what this process starts next would look for a folder that is gone"


def test_prompts_of_more_tokens_than_a_step_takes_are_answered(tmp_path: Path) -> None:
    """On the CPU vLLM ends where it prefills a seeded request in parts, as it did with all requests that go on after a restart."""
    engine = start_engine(tmp_path, qwen2(0), arguments={"max_num_batched_tokens": WIDTH}, restarts=0)
    try:
        model = qwen2(1)
        version = load(engine, model)
        asked = prompts(12, seed=3, length=50)
        engine.generate([sampled(f"r{i}", prompt, seed=i, tokens=20) for i, prompt in enumerate(asked)])
        outcomes = finish_all(engine)
        for i, prompt in enumerate(asked):
            outcome = outcomes[f"r{i}"]
            assert set(outcome.versions) == {version}
            expected = log_probs(model, prompt, outcome.tokens)[np.arange(len(outcome.tokens)), outcome.tokens]
            np.testing.assert_allclose(outcome.logprobs, expected, atol=1e-4)
    finally:
        engine.close()
