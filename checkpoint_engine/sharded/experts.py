"""Experts that a model keeps stacked, and its Hugging Face checkpoint one by one: views of the gathered tensor under the checkpoint's names.

For the family whose checkpoints are named like Qwen2-MoE's (transformers 5 stacks them when it loads): Qwen2/3-MoE, DeepSeek, OLMoE, GLM-4-MoE and
others. Not for models whose checkpoints are stacked themselves (gpt-oss, Llama 4) or named otherwise (Mixtral).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

_HALVES = ("gate_proj", "up_proj")


def unstacked(name: str, whole: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """`experts.gate_up_proj` [E, 2I, H] as `experts.0.gate_proj.weight` [I, H], `experts.0.up_proj.weight` [I, H], …; `experts.down_proj` [E, H, I]
    as `experts.0.down_proj.weight` [H, I], …; anything else as it is. No copy."""
    layer, _, last = name.rpartition(".")
    if not layer.endswith(".experts") or whole.ndim != 3 or last not in ("gate_up_proj", "down_proj"):
        yield name, whole
        return
    for expert, weight in enumerate(whole.unbind()):
        parts = zip(_HALVES, weight.chunk(2), strict=True) if last == "gate_up_proj" else [(last, weight)]
        for part, tensor in parts:
            yield f"{layer}.{expert}.{part}.weight", tensor
