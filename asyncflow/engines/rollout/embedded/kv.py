"""Where keys and values live: fixed tensors written in place, handed to a transformers model as its cache.

Layout [layers, 2, rows, kv_heads, width, head_dim]; index 0 of the second axis is keys, 1 is values. The width never changes, because another
width gives other bits. Positions beyond a row's current one hold stale but finite numbers: the mask gives them weight exactly 0.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

KeysValues = tuple[torch.Tensor, torch.Tensor]


class KvShape:
    """What the tensors of a model's cache look like, and how wide its activations are, read from its config."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise ValueError("model.config.layer_types holds 'sliding_attention': the embedded engine has full attention only; use the vLLM engine")
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.widths: tuple[int, ...] = (config.hidden_size, config.intermediate_size, self.head_dim)  # of a token's activations

    def zeros(self, rows: int, width: int) -> torch.Tensor:
        """[layers, 2, rows, kv_heads, width, head_dim] of zeros."""
        return torch.zeros(self.layers, 2, rows, self.heads, width, self.head_dim, dtype=self.dtype, device=self.device)


class SlotCache(Cache):
    """The decode cache: one new token a row, each row at a position of its own."""

    def __init__(self, storage: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.storage = storage
        self._rows = torch.arange(storage.shape[2], device=storage.device)
        self.positions = torch.zeros_like(self._rows)  # [S] where this step's token is written

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object) -> KeysValues:
        """key_states, value_states [S, kv_heads, 1, head_dim] → all keys, all values [S, kv_heads, W, head_dim]."""
        keys, values = self.storage[layer_idx, 0], self.storage[layer_idx, 1]
        keys[self._rows, :, self.positions] = key_states[:, :, 0]
        values[self._rows, :, self.positions] = value_states[:, :, 0]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.storage.shape[4])


class PrefillCache(Cache):
    """The prefill cache: every row writes the same run of positions [base, base + P)."""

    def __init__(self, storage: torch.Tensor) -> None:
        super().__init__(layers=[])
        self.storage = storage
        self.base = 0

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: object, **__: object) -> KeysValues:
        """key_states, value_states [F, kv_heads, P, head_dim] → all keys, all values [F, kv_heads, W, head_dim]."""
        stop = self.base + key_states.shape[2]
        keys, values = self.storage[layer_idx, 0], self.storage[layer_idx, 1]
        keys[:, :, self.base : stop] = key_states
        values[:, :, self.base : stop] = value_states
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.base
