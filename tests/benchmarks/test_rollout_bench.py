"""The benchmark of the rollout worker: what both sides are given, and the whole of it in small."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import msgspec
import pytest
import torch

from asyncflow.contracts.rollout import Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import build_model
from asyncflow.engines.rollout.vllm.table import Attempt
from asyncflow.flow.core import core_config
from asyncflow.workers.groups import GroupBook
from benchmarks.harness import Row
from benchmarks.rollout import FULL, QUICK
from benchmarks.rollout_bench.scope import RUN_SEED, TEMPERATURE, Scope, plain
from benchmarks.rollout_bench.settings import READER, run_config
from transfer_queue.messages import GroupLease

ROOT = Path(__file__).parents[2]


def test_the_model_has_at_least_fifty_million_parameters() -> None:
    with torch.device("meta"):
        model = build_model(FULL.shape)
    assert sum(parameter.numel() for parameter in model.parameters()) >= 50e6


def test_the_bare_engine_gets_the_seeds_that_the_worker_gives_vllm() -> None:
    book = GroupBook(RUN_SEED, Sampling(TEMPERATURE), QUICK.response_tokens, QUICK.rows)
    requests = [
        request
        for gid, prompt in zip(range(24, 24 + QUICK.groups), QUICK.prompts(2), strict=True)
        for request in book.admit(GroupLease(gid=gid, fence=0, min_version=0, rows=list(range(QUICK.rows)), columns={}), prompt)
    ]
    assert QUICK.seeds(24) == [Attempt(request.id, request, WeightsId("policy", 0, 3)).seed for request in requests]


def test_both_sides_get_the_same_prompts_and_every_turn_others() -> None:
    there = msgspec.convert(plain(FULL), type(FULL))  # in the other side's process
    assert there.prompts(3) == FULL.prompts(3) != FULL.prompts(4)
    assert len(FULL.prompts(0)) == FULL.groups
    assert not {token for prompt in FULL.prompts(0) for token in prompt} & set(FULL.stop_token_ids)


@pytest.mark.parametrize("scope", [FULL, QUICK], ids=["full", "quick"])
def test_the_run_that_is_measured_has_the_sides_shapes_and_a_reader_beside_the_trainer(scope: Scope, tmp_path: Path) -> None:
    config = run_config(scope, tmp_path, tmp_path)
    assert config.rollout.cache_width == scope.prompt_tokens + scope.response_tokens  # the bare engine's most
    topic = core_config(config).topics[0]
    assert {consumer.name: consumer.terminal for consumer in topic.consumers} == {READER: False, "train": True}
    assert topic.window.batch == 1
    assert topic.window.staleness is None


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_it_says_what_is_missing() -> None:
    done = run([sys.executable, "benchmarks/rollout.py", "--quick"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 2
    assert "make venv-vllm" in done.stderr


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_quick_benchmark_measures_the_real_worker_with_and_without_updates_and_claims_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rollout.json"
    command = [sys.executable, "benchmarks/rollout.py", "--quick", "--json", str(file)]
    done = run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [msgspec.convert(row, Row) for row in msgspec.json.decode(file.read_bytes())["rows"]]
    assert [row.name for row in rows] == ["rollout worker", f"rollout worker, an update every {QUICK.every_s:g} s"]
    assert all(row.value is not None and row.value > 0 and row.reference is not None and row.met is None for row in rows)
    loads = int(rows[1].note.split()[0])
    assert loads > 0, rows[1].note
