"""verl loads critics with flash attention, whatever the configuration says; there is none for a CPU."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

WAITS_FOR = "verl.utils.model"


def mend(model: ModuleType) -> None:
    load = model.load_valuehead_model

    def load_valuehead_model(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        stock = AutoModelForTokenClassification.from_pretrained

        @functools.wraps(stock)
        def from_pretrained(*arguments: Any, **settings: Any) -> Any:
            return stock(*arguments, **{**settings, "attn_implementation": "sdpa"})

        AutoModelForTokenClassification.from_pretrained = from_pretrained
        try:
            return load(local_path, torch_dtype, model_config, trust_remote_code)
        finally:
            AutoModelForTokenClassification.from_pretrained = stock

    model.load_valuehead_model = load_valuehead_model
