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


def prompt_ids(tokenizer: PreTrainedTokenizerFast, chats: Sequence[list[Message]]) -> list[list[int]]:
    """Token ids of each chat, up to where the model's turn begins."""
    texts = [tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) for messages in chats]
    encoded: Any = tokenizer(texts, add_special_tokens=False, padding=False, truncation=False)  # the template has written the special ones
    return [list(ids) for ids in encoded["input_ids"]]


def stops_of(folder: str | Path, tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """The tokens that end a response where the recipe names none: those of the model, as the rollout engines take them (`data.stops`); of a folder
    that holds a tokenizer alone, its end of sequence. Raises ValueError where there is none."""
    if (Path(folder) / CONFIG).is_file():
        return folder_stops(folder)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"rollout.stop_token_ids is empty and the tokenizer in {folder} names no end of sequence: no response would end. Fix: {FIX}")
    return (int(tokenizer.eos_token_id),)
