"""A tiny model folder (random Qwen2, tokenizer with a chat template) and tiny parquet files, for tests of the mathematical task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from asyncflow.data.tokenizer import char_tokenizer

ALPHABET = "0123456789+-*/=?#.,\\{}$ <>abcdefghijklmnopqrstuvwxyz"
SMALL = "0123456789+?<>"  # so few that random weights write a right answer now and then
TEMPLATE = "{% for m in messages %}<{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def write_tokenizer(folder: Path, alphabet: str = ALPHABET, template: str | None = TEMPLATE) -> Path:
    tokenizer = char_tokenizer(alphabet)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def write_model(folder: Path, alphabet: str = SMALL, seed: int = 3) -> Path:
    """As a user has one: config.json, model.safetensors, tokenizer files."""
    from asyncflow.engines.model import ModelShape, build_model

    write_tokenizer(folder, alphabet)
    tokenizer = char_tokenizer(alphabet)
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    shape = ModelShape(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, heads=2, kv_heads=1, seed=seed, **special)
    build_model(shape).save_pretrained(folder)
    return folder


def row(question: str, truth: Any, **more: Any) -> dict[str, Any]:
    """One row in verl's columns."""
    return {
        "data_source": "test",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": 0},
    } | more


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def sums(count: int) -> list[dict[str, Any]]:
    """"0+0?", "0+1?", … : different questions."""
    return [row(f"{index // 10}+{index % 10}?", str(index // 10 + index % 10)) for index in range(count)]
