"""A new stage is one file and YAML (issue 2, point 3): nothing of the pipeline knows it, and its column changes what the trainer computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.harness import RECIPE, assert_completed, configure, run_pipeline

VALUES = RECIPE.with_name("values.yaml")


def test_a_values_stage_added_by_one_file_and_yaml_changes_the_loss(tmp_path: Path) -> None:
    runs = {
        scale: run_pipeline(configure(tmp_path / f"run-{scale}", f"stages.values.options.scale={scale}", "run.steps=2", recipe=VALUES))
        for scale in (0.0, 0.05)
    }
    for run in runs.values():
        assert_completed(run)
    plain, shifted = (run.metrics[0] for run in runs.values())
    rows, tokens = plain.info["rows"], plain.info["tokens"]
    assert shifted.info["values"] == pytest.approx(0.05 * rows * (tokens / rows) / tokens)  # summed over rows, divided by the tokens of the batch
    assert plain.info["values"] == 0
    assert plain.info["tokens"] == shifted.info["tokens"]  # version 0 sampled the same rows
    assert abs(plain.info["loss"] - shifted.info["loss"]) > 1e-3
    assert runs[0.0].summary.weights_digest != runs[0.05].summary.weights_digest
