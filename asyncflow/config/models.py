"""Settings of the models: where the weights of version 0 come from."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncflow.config.settings import Settings

DTYPES = ("float32", "bfloat16", "float16")
COMPUTED = "float32"  # the one that workers compute in so far


class ModelSettings(Settings, frozen=True):
    """One model. Exactly one of `path`, `prepare` and `same_as` says where its first weights come from."""

    path: str | None = None  # Directory of ordinary Hugging Face files (config.json, safetensors, tokenizer).
    prepare: str | None = None  # "module:function" called as `function(config, model_name)`; returns such a directory, made or cached.
    same_as: str | None = None  # Name of the model whose version 0 this one is (a reference model is the policy before training).
    frozen: bool = False  # Never trained: no publisher and no weight stream, loaded once by its stage.
    dtype: str = "float32"  # Type that the model computes in, float32 so far; staleness 0 is bit for bit in float32.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # Handed to `prepare`: architecture, warm start.
