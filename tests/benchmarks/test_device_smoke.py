"""The smoke test for a machine with a device: its parts here, the whole of it on the CPU with a toy model, and the script as far as it comes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run

import msgspec
import pytest
import torch

from asyncflow.engines.model import build_model
from benchmarks.device_smoke import QWEN_05B, TOY
from benchmarks.harness import Row
from benchmarks.smoke_bench.way import Answer, Phases, farthest, redraw

ROOT = Path(__file__).parents[2]
PROMPT = (3, 4, 5)


def greedy(model: torch.nn.Module, tokens: int) -> Answer:
    """By whole forward passes."""
    answer = Answer([], [])
    for _ in range(tokens):
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *answer.token_ids]])).logits[0, -1].log_softmax(-1)
        answer.token_ids.append(int(logits.argmax()))
        answer.logprobs.append(float(logits.max()))
    return answer


def test_other_weights_give_other_answers_and_that_is_seen() -> None:
    model = build_model(TOY, seed=0).eval()
    redraw(model, 1)
    answer = greedy(model, 8)
    assert farthest(model, PROMPT, answer) < 1e-4
    redraw(model, 2)
    assert farthest(model, PROMPT, answer) > 1e-2
    redraw(model, 1)
    assert farthest(model, PROMPT, answer) < 1e-4
    answer.logprobs[5] += 0.5
    assert farthest(model, PROMPT, answer) == pytest.approx(0.5, abs=1e-3)


def test_the_model_has_the_shape_of_a_half_billion_parameters() -> None:
    with torch.device("meta"):
        model = build_model(QWEN_05B)
    assert sum(parameter.numel() for parameter in model.parameters()) == 494_032_768


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_the_script_says_that_there_is_no_device_and_fails(tmp_path: Path) -> None:
    """With an interpreter given it installs nothing."""
    stand_in = tmp_path / "nvidia-smi"
    stand_in.write_text("#!/bin/sh\necho no device\n")
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(ROOT / "benchmarks/cuda_smoke.sh"), sys.executable]
    done = run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "torch sees no CUDA device here" in done.stderr
    assert not (ROOT / ".venv-cuda").exists()  # it was not made


@pytest.mark.vllm
@pytest.mark.timeout(600)
def test_the_smoke_test_brings_every_version_into_a_real_vllm_and_measures_every_phase(tmp_path: Path) -> None:
    file = tmp_path / "smoke.json"
    command = [sys.executable, "benchmarks/device_smoke.py", "--device", "cpu", "--quick", "--json", str(file)]
    done = run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row.name: row for row in (msgspec.convert(row, Row) for row in msgspec.json.decode(file.read_bytes())["rows"])}
    assert {name.replace("_", " ") for name in Phases.__struct_fields__} <= rows.keys()
    assert all(row.value is not None and row.value > 0 for row in rows.values())
    assert "shared" in rows["copy out"].note
    assert rows["log-probabilities, vLLM against the trainer's model"].met is True
    assert done.stdout.count("version ") == 3
