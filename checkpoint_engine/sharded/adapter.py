"""What a LoRA adapter needs beside its tensors: the `adapter_config.json` that PEFT, and engines that read PEFT's folders, expect."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

CONFIG_FILE = "adapter_config.json"


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """PEFT's fields, by its names. What is not here has PEFT's default."""

    r: int
    lora_alpha: float
    target_modules: tuple[str, ...]  # last names of the modules, e.g. "q_proj"
    modules_to_save: tuple[str, ...] | None = None
    base_model_name_or_path: str | None = None
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    peft_type: str = "LORA"
    task_type: str = "CAUSAL_LM"
    inference_mode: bool = True

    def write(self, folder: Path) -> None:
        """To `folder`/adapter_config.json. Raises OSError."""
        (folder / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self)))


def adapter_config(
    shapes: Iterable[tuple[str, tuple[int, ...]]], lora_alpha: float, base: str | None = None, use_rslora: bool = False
) -> AdapterConfig:
    """The configuration of an adapter from what is published of it. `shapes`: (PEFT's name, shape), as `adapter_names` gives them; `base`: where
    the base model is. For a model that PEFT itself has wrapped, its own `peft_config` knows more.

    Raises ValueError when there is no adapter, or its layers have different ranks.
    """
    ranks: dict[str, int] = {}
    saved: set[str] = set()
    dora = False
    for name, shape in shapes:
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part.startswith("lora_")), None)
        if at is None:
            saved.add(parts[-2])
            continue
        dora |= parts[at] == "lora_magnitude_vector"
        if parts[at] in ("lora_A", "lora_embedding_A"):
            ranks[".".join(parts[:at])] = shape[0]
    if len(set(ranks.values())) != 1:
        raise ValueError(f"the ranks of the adapter's layers are {ranks}: one configuration takes one rank; publish an adapter, of one rank")
    targets = tuple(sorted({layer.rpartition(".")[2] for layer in ranks}))
    return AdapterConfig(
        r=next(iter(ranks.values())),
        lora_alpha=lora_alpha,
        target_modules=targets,
        modules_to_save=tuple(sorted(saved)) or None,
        base_model_name_or_path=base,
        use_rslora=use_rslora,
        use_dora=dora,
    )
