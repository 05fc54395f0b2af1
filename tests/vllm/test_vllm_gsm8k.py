"""The recipe gsm8k_qwen through vLLM: a tiny model from ordinary files, parquet, the real reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.gsm8k import assert_learned, tiny
from tests.pipeline.harness import run_pipeline

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
SMALL = ("rollout.engine=vllm", "+rollout.options={kv_cache_bytes:67108864}")


def test_the_recipe_trains_through_vllm(tmp_path: Path) -> None:
    assert_learned(run_pipeline(tiny(tmp_path, *SMALL)))
