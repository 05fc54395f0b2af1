"""One engine for the tests that leave it as they found it: its start takes longer than all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vllm_harness import finish_all, qwen2, start_engine

from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRolloutEngine]:
    engine = start_engine(tmp_path_factory.mktemp("config"), qwen2(0))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: VllmRolloutEngine) -> Iterator[VllmRolloutEngine]:
    yield shared
    shared.pause("abort")
    finish_all(shared)
    shared.resume()
