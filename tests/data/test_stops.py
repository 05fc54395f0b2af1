"""What ends a response where nobody says so: the same for the scorer and for every engine, whatever the model's files look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from asyncflow.config.load import load
from asyncflow.data.chat import load_tokenizer, stops_of
from asyncflow.data.stops import folder_stops, model_stops
from asyncflow.engines.greedy import make_embedded
from asyncflow.engines.model import load_hf
from tests.data.math_files import write_tokenizer

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart"
NOTHING, NULL = "nothing", None
CASES = [  # eos_token_id of config.json, of generation_config.json (NOTHING: it names none, or is not there), what ends a response
    (5, NOTHING, (5,)),
    ([9, 5], NOTHING, (5, 9)),
    (5, 7, (5, 7)),
    (5, [7, 5], (5, 7)),
    (0, NULL, (0,)),
    (NOTHING, NOTHING, (2,)),  # the architecture's default
    (NOTHING, [7], (2, 7)),
    (NULL, 7, (7,)),
    (NULL, 0, (0,)),
]


def model_folder(folder: Path, own: Any, generation: Any) -> Path:
    """A tiny random Llama, whose architecture has an end of sequence of its own: 2."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, pad_token_id=0
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    edit(folder / "config.json", own)
    (folder / "generation_config.json").unlink()
    if generation is not NOTHING:
        (folder / "generation_config.json").write_text("{}")
        edit(folder / "generation_config.json", generation)
    return folder


def edit(path: Path, ends: Any) -> None:
    record = json.loads(path.read_text())
    record.pop("eos_token_id", None)
    path.write_text(json.dumps(record if ends is NOTHING else record | {"eos_token_id": ends}))


@pytest.mark.parametrize(("own", "generation", "ends"), CASES)
def test_scorer_and_engines_end_a_response_at_the_same_tokens(tmp_path: Path, own: Any, generation: Any, ends: tuple[int, ...]) -> None:
    folder = model_folder(tmp_path, own, generation)
    assert folder_stops(folder) == ends
    assert stops_of(folder, load_tokenizer(folder)) == ends
    assert model_stops(load_hf(folder)) == ends  # a network that was read from it is the same model
    engine = make_embedded(folder, load(RECIPE, ["rollout.prompt_width=16", "rollout.response_width=16"]))
    try:
        assert engine._stops == ends
    finally:
        engine.close()


def test_a_model_that_names_no_end_is_refused(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, NULL, NULL)
    words = (
        r"rollout\.stop_token_ids is empty and .*names no end of sequence in config\.json or generation_config\.json.*Fix: rollout\.stop_token_ids"
    )
    for ask in (lambda: folder_stops(folder), lambda: model_stops(load_hf(folder)), lambda: stops_of(folder, load_tokenizer(folder))):
        with pytest.raises(ValueError, match=words):
            ask()


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, 5, 7)
    (folder / "generation_config.json").write_text('{"eos_token_id": "<end>"}')
    with pytest.raises(ValueError, match=r"generation_config\.json: .*eos_token_id must be a token id.*Fix: correct the file"):
        folder_stops(folder)
