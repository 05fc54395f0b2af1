"""The recipe gsm8k_qwen trains: every process, ordinary model files, parquet, the real reward; only model and files are tiny."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.gsm8k import assert_learned, tiny
from tests.pipeline.harness import run_pipeline


def test_the_recipe_trains_a_model_from_ordinary_files_on_questions_in_parquet(tmp_path: Path) -> None:
    run = run_pipeline(tiny(tmp_path))
    assert_learned(run)
    exported = Path(run.summary.exported or "")
    assert {"config.json", "model.safetensors"} <= {path.name for path in exported.iterdir()}


def test_a_file_that_is_not_there_ends_the_run_with_its_name_and_the_fix(tmp_path: Path) -> None:
    run = run_pipeline(tiny(tmp_path, "task.options.train=nowhere.parquet", "limits.drain_s=1"))
    assert "source-0 raised: DataError: nowhere.parquet: there is no such file" in run.summary.exit_reason
    assert "Fix: task.options.train=FILE" in run.summary.exit_reason
