"""Chat messages as a model's own tokenizer and chat template write them, and which tokens end its turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncflow.data.stops import CONFIG, FIX, folder_stops

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from asyncflow.data.parquet import Message


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer in a folder of Hugging Face files; nothing is fetched, no code of the folder is run. Raises ValueError."""
    from transformers import AutoTokenizer

    if not (Path(folder) / "tokenizer_config.json").is_file():
        rule = "it must be a folder of Hugging Face files with a tokenizer (tokenizer.json, tokenizer_config.json)"
        raise ValueError(f"task.options.tokenizer = {str(folder)!r}: {rule}; no prompt can be written. Fix: models.policy.path=FOLDER")
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer.chat_template:
        rule = "its tokenizer has no chat template, and prompts are chat messages"
        fix = "an instruction-tuned model, or a chat_template.jinja in the folder"
        raise ValueError(f"task.options.tokenizer = {str(folder)!r}: {rule}; no prompt can be written. Fix: {fix}")
    return tokenizer


class ChatRefused(ValueError):
    """The chat template does not take a chat, or writes nothing for it. `place`: which of those that were given, from 0."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place


def prompt_ids(tokenizer: PreTrainedTokenizerFast, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of each chat, one at least, up to where the model's turn begins. Raises ChatRefused."""
    texts = [_written(tokenizer, place, messages) for place, messages in enumerate(chats)]
    encoded: Any = tokenizer(texts, add_special_tokens=False, padding=False, truncation=False)  # the template has written the special ones
    prompts = [list(ids) for ids in encoded["input_ids"]]
    for place, ids in enumerate(prompts):
        if not ids:
            raise ChatRefused(place, "it has no token")
    return prompts


def _written(tokenizer: PreTrainedTokenizerFast, place: int, messages: list[Message]) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # a template is a program of the model's maker: many take no system message, or want roles to alternate
        raise ChatRefused(place, f"{type(error).__name__}: {error}") from error


def stops_of(folder: str | Path, tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """The tokens that end a response where the recipe names none: those of the model, as the rollout engines take them (`data.stops`); of a folder
    that holds a tokenizer alone, its end of sequence. Raises ValueError where there is none."""
    if (Path(folder) / CONFIG).is_file():
        return folder_stops(folder)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"rollout.stop_token_ids is empty and the tokenizer in {folder} names no end of sequence: no response would end. Fix: {FIX}")
    return (int(tokenizer.eos_token_id),)
