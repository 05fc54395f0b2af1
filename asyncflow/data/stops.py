"""Which tokens end a response where the recipe names none: one rule for whoever samples and whoever scores.

They are all that the model's own files name as an end of sequence: config.json (with its architecture's default, where it says nothing), and
generation_config.json beside it, in which instruction-tuned models name the end of a turn next to the end of a text. Engines are told these ids
and take nothing from the files by themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

CONFIG, GENERATION = "config.json", "generation_config.json"
Ends = int | list[int] | None
FIX = "rollout.stop_token_ids=[ID]"


class GenerationFile(msgspec.Struct):
    """What is read of a generation_config.json."""

    eos_token_id: Ends = None


def model_stops(model: PreTrainedModel) -> tuple[int, ...]:
    """Of a model that is here, ascending. Raises ValueError where it names none."""
    named = getattr(model.generation_config, "eos_token_id", None)
    return _all(model.config, named, "the model")


def folder_stops(folder: str | Path) -> tuple[int, ...]:
    """Of a folder of Hugging Face files, ascending; no weight is read. Raises ValueError where they name none, or cannot be read."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return _all(config, _generation(Path(folder)), str(folder))


def _generation(folder: Path) -> Ends:
    path = folder / GENERATION
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=GenerationFile).eos_token_id
    except msgspec.DecodeError as error:
        rule = "eos_token_id must be a token id, a list of them, or null"
        raise ValueError(f"{path}: {error}; {rule}; nobody could say where a response ends. Fix: correct the file, or {FIX}") from error


def _all(config: PretrainedConfig, generation: Ends, where: str) -> tuple[int, ...]:
    own: Ends = getattr(config.get_text_config(), "eos_token_id", None)
    ends = sorted({*_listed(own), *_listed(generation)})
    if not ends:
        rule = f"{where} names no end of sequence in {CONFIG} or {GENERATION}"
        raise ValueError(f"rollout.stop_token_ids is empty and {rule}: no response would ever end. Fix: {FIX}")
    return tuple(ends)


def _listed(ends: Ends) -> list[int]:
    return [] if ends is None else [int(end) for end in ends] if isinstance(ends, list | tuple) else [int(ends)]
