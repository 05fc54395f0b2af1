"""From the names in a trainer's state dict to those that Hugging Face saves: wrappers leave, PEFT's layers are told from the base's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Naming: TypeAlias = Callable[[str], str | None]
"""The published name of a state dict's key; None: not a part of what is published."""

_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
_PEFT = "base_model.model."
_TRAINED = "modules_to_save"  # PEFT's copy of a module that is trained whole
_WITHOUT_WEIGHT = ("lora_embedding_", "lora_magnitude_vector")  # PEFT saves these as parameters of the layer, not of a module


def unwrapped(name: str) -> str:
    """Without what FSDP1, activation checkpointing and torch.compile put between, and DDP before it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def base_name(name: str) -> str | None:
    """The base model's name of a tensor, with or without an adapter around it; None for the adapter's own tensors.

    >>> base_name("module.base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")
    'model.layers.0.self_attn.q_proj.weight'
    """
    parts = unwrapped(name).removeprefix(_PEFT).split(".")
    if any(part.startswith("lora_") or part == _TRAINED for part in parts):
        return None
    return ".".join(part for part in parts if part not in ("base_layer", "original_module"))


def adapter_names(adapter: str = "default") -> Naming:
    """Names of the LoRA adapter `adapter` as PEFT saves them, without the adapter's own name; None for the base's tensors and other adapters'.

    >>> adapter_names()("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight")
    'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'
    """

    def naming(name: str) -> str | None:
        parts = unwrapped(name).removeprefix(_PEFT).split(".")
        at = next((i for i, part in enumerate(parts) if part.startswith("lora_") or part == _TRAINED), None)
        if at is None:
            return None
        before, kind, rest = parts[:at], parts[at], parts[at + 1 :]
        own = rest[:1] == [adapter]
        if kind == _TRAINED:
            return _PEFT + ".".join(before + rest[1:]) if own else None
        rest = rest[1:] if own else rest
        if rest not in ([], ["weight"], ["bias"]):
            return None
        tail = [] if kind.startswith(_WITHOUT_WEIGHT) else rest or ["weight"]
        return _PEFT + ".".join([*before, kind, *tail])

    return naming
