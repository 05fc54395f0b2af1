"""`asyncflow size`: what a user reads for a table and for a run, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from asyncflow.cli.main import main
from asyncflow.observe.records import EVENTS
from tests.sizing.run_files import write_run
from tests.sizing.tables import tailed
from transfer_queue.messages import Event


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "costs.yaml"
    path.write_text(yaml.safe_dump(msgspec.to_builtins(tailed(8))))
    return str(path)


def test_a_table_is_answered_with_stages_bottleneck_and_splits(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", table, "--staleness", "1", "--policy", "drop"]) == 0
    text = capsys.readouterr().out
    for word in ("rollout", "actor_forward", "ref_forward", "trainer", "bottleneck:", "present", "best", "synchronous loop", "12-1-1-2", "drop"):
        assert word in text, word
    assert "measured" not in text  # a table alone has measured nothing


def test_json_says_the_same_in_numbers(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", table, "--staleness", "null", "--devices", "8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["advice"]["staleness"] is None
    split = report["advice"]["best"]["split"]
    assert sum(split.values()) == 8
    assert report["model_error"] is None
    assert {stage["stage"] for stage in report["advice"]["stages"]} == {"rollout", "actor_forward", "ref_forward", "trainer"}


def test_a_run_shows_what_was_measured_beside_what_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = str(write_run(tmp_path / "run"))
    assert main(["size", run_dir, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["measured_tokens_per_s_device"] == pytest.approx(125.0)
    predicted = report["advice"]["present"]["tokens_per_s_device"]
    assert report["model_error"] == pytest.approx(predicted / 125.0 - 1)
    assert report["notes"]
    assert main(["size", run_dir]) == 0
    assert "the prediction is off by" in capsys.readouterr().out
    assert main(["size", run_dir, "--staleness", "4"]) == 0
    assert "the prediction is off by" not in capsys.readouterr().out  # the run did something else


def test_the_staleness_that_was_measured_stands_beside_the_predicted_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By group and oldest token, over the steps that the throughput is of; a run that recorded no such event leaves the place empty."""
    run_dir = write_run(tmp_path / "run")
    assert main(["size", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_staleness_mean"] is None
    ages = [(5.0, 0), *((10.0 * version, age) for version in range(4, 12) for age in (0, 1))]  # the first one is of the warm-up
    events = [Event(t_s=t_s, kind="group", dst="trained", data={"age": age}) for t_s, age in ages]
    (run_dir / EVENTS).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    assert main(["size", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measured_staleness_mean"] == pytest.approx(0.5)
    assert main(["size", str(run_dir)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("measured"))
    assert line.split()[:4] == ["measured", line.split()[1], "125.0", "0.50"]


def test_without_a_bound_the_staleness_is_said_to_grow(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", table, "--staleness", "null"]) == 0
    assert "16 batches are taken" in capsys.readouterr().out
    assert main(["size", table, "--staleness", "2"]) == 0
    assert "batches are taken" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere.yaml"], "no such file"),
        (["published_64_devices"], "Did you mean 'published_64_devices_7b'"),
        (["published_64_devices_7b", "--devices", "4"], "--devices 5"),
        (["published_64_devices_7b", "--staleness", "-1"], "null"),
        (["published_64_devices_7b", "--staleness", "few"], "whole number"),
        (["."], "config.json"),
    ],
)
def test_what_cannot_be_sized_is_refused_in_a_sentence(options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *(str(tmp_path) if option == "." else option for option in options)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.tools
@pytest.mark.timeout(600)
def test_a_real_run_is_predicted_from_its_own_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Workers that share two cores are no devices of their own, and the model knows no evaluations: within a third, not within a few percent."""
    run_dir = str(tmp_path / "run")
    command = [sys.executable, "-m", "asyncflow.cli.main", "train", "recipes/quickstart", "run.steps=30", "--run-dir", run_dir]
    subprocess.run(command, check=True, timeout=500, stdout=subprocess.DEVNULL)
    assert main(["size", run_dir, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert abs(report["model_error"]) < 1 / 3, report


def test_sizing_needs_no_torch() -> None:
    code = "import sys; import asyncflow.cli.size; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
