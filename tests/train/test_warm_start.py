"""The first model: made once, cached under what made it, ordinary Hugging Face files, with what was measured beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncflow.config import ModelSettings, RolloutSettings, RunConfig, RunSettings, TaskSettings
from asyncflow.data.split import SALT
from asyncflow.data.task import load_task
from asyncflow.engines.train.warm_start import RECORD, WarmStartRecord, WarmStartSettings, cache_key, prepare

QUICK: dict[str, Any] = {
    "shape": {"hidden_size": 32, "intermediate_size": 32, "layers": 1, "heads": 1, "kv_heads": 1, "max_positions": 32},
    "corpus": 64,
    "batch": 16,
    "rise_steps": 5,
    "least_steps": 30,
    "most_steps": 60,
    "check_every": 10,
    "check_items": 16,
    "greedy": [0.0, 1.0],
    "sampled": 0.0,
}


def config(cache: Path, seed: int = 1, **changed: Any) -> RunConfig:
    return RunConfig(
        run=RunSettings(seed=seed, cache=str(cache)),
        models={"policy": ModelSettings(prepare="asyncflow.engines.train.warm_start:prepare", options=QUICK | changed)},
        task=TaskSettings(path="asyncflow.data.number_sorting:NumberSorting", options={"most": 3}),
        rollout=RolloutSettings(slots=8, prompt_width=5, response_width=6),
    )


def test_it_is_made_once_and_found_again(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = prepare(config(tmp_path), "policy")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert prepare(config(tmp_path), "policy") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    record = msgspec.json.decode((folder / RECORD).read_bytes(), type=WarmStartRecord)
    assert record.steps == 30
    assert 0 < record.loss < 2.7
    assert 0 <= record.accuracy <= 1
    assert record.seconds > 0


def test_the_same_settings_give_the_same_bytes_and_another_seed_other_ones(tmp_path: Path) -> None:
    folders = [prepare(config(tmp_path / place, seed), "policy") for place, seed in (("a", 1), ("b", 1), ("b", 2))]
    first, again, other = (folder.joinpath("model.safetensors").read_bytes() for folder in folders)
    assert first == again
    assert first != other
    assert folders[0].name == folders[1].name != folders[2].name


def test_its_files_are_ordinary_hugging_face_files(tmp_path: Path) -> None:
    run = config(tmp_path)
    folder = prepare(run, "policy")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen2"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.get_vocab() == load_task(run).tokenizer.get_vocab()


def test_an_accuracy_that_never_comes_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"most_steps = 60 .* no model was written"):
        prepare(config(tmp_path, sampled=1.1), "policy")
    assert list(tmp_path.iterdir()) == []


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(msgspec.ValidationError, match="lerning_rate"):
        prepare(config(tmp_path, lerning_rate=1.0), "policy")
    with pytest.raises(msgspec.ValidationError, match="hiden_size"):
        prepare(config(tmp_path, shape={"hiden_size": 32}), "policy")


def test_a_model_taught_on_other_splits_is_not_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(tmp_path)
    settings = msgspec.convert(run.models["policy"].options, WarmStartSettings)
    before = cache_key(run, settings)
    assert before == cache_key(run, settings)
    monkeypatch.setattr("asyncflow.engines.train.warm_start.SALT", SALT + 1)
    assert cache_key(run, settings) != before
