"""Weights of a model's shape, with random bytes: sizes and number of tensors are what transfers depend on."""

from __future__ import annotations

import msgspec
import numpy as np
import torch


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder with tied embeddings, in bf16; the defaults are those of Qwen2.5-0.5B: 290 tensors, 0.99 GB."""

    vocabulary: int = 151_936
    hidden: int = 896
    key_value: int = 128
    feed_forward: int = 4864
    layers: int = 24

    def shapes(self) -> dict[str, tuple[int, ...]]:
        h, kv, ff = self.hidden, self.key_value, self.feed_forward
        layer = {
            "input_layernorm.weight": (h,), "post_attention_layernorm.weight": (h,), "self_attn.q_proj.weight": (h, h), "self_attn.q_proj.bias": (h,),
            "self_attn.k_proj.weight": (kv, h), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.weight": (kv, h), "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.weight": (h, h), "mlp.gate_proj.weight": (ff, h), "mlp.up_proj.weight": (ff, h), "mlp.down_proj.weight": (h, ff),
        }  # fmt: skip
        named = {f"model.layers.{i}.{name}": shape for i in range(self.layers) for name, shape in layer.items()}
        return {"model.embed_tokens.weight": (self.vocabulary, h), **named, "model.norm.weight": (h,)}

    @property
    def nbytes(self) -> int:
        return sum(2 * int(np.prod(shape)) for shape in self.shapes().values())

    def tensors(self, seed: int) -> dict[str, torch.Tensor]:
        draw = np.random.default_rng(seed)
        bits = {name: draw.integers(0, 1 << 16, shape, dtype=np.uint16) for name, shape in self.shapes().items()}
        return {name: torch.from_numpy(array).view(torch.bfloat16) for name, array in bits.items()}


def raw(tensor: torch.Tensor) -> np.ndarray:
    """uint8 [nbytes], the same memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy()
