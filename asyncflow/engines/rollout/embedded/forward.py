"""The two shapes in which the model ever runs: decode [S, 1] over all slots and prefill [F, P], each against a cache of one width.

Two shapes only, because a matrix product of another shape may take another kernel and then differ in its last bits. And whole vectors only: the
last elements of an activation that do not fill a vector take a scalar `exp` whose last bit may differ, so rows are added until none are left over
(seen with 11 rows of intermediate_size 200). With both a row's numbers depend on the weights and its own tokens alone; `check_rows_agree` looks at
start whether that holds on this machine.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from transformers import PreTrainedModel

from asyncflow.engines.rollout.embedded.kv import KvShape, PrefillCache, SlotCache

VECTOR = 64  # elements; at least what an elementwise kernel handles at once (two registers of 16 float32 on AVX-512)

PromptKv = torch.Tensor  # [layers, 2, kv_heads, n, head_dim]: keys and values of a prompt's first n positions


class Forward:
    """A model and its caches. All calls run under inference mode."""

    def __init__(self, model: PreTrainedModel, slots: int, kv_width: int, prefill_rows: int, prompt_width: int) -> None:
        self._model, self._slots, self._width = model, slots, prompt_width
        shape = KvShape(model)
        self.decode_rows = _whole_vectors(slots, 1, shape)  # >= slots: the rest is padding
        self.prefill_rows = _whole_vectors(prefill_rows, prompt_width, shape)
        self._device = shape.device
        prefill_width = -(-kv_width // prompt_width) * prompt_width  # whole prefill chunks
        prefill_width = -(-prefill_width // 16) * 16
        with torch.inference_mode():
            self._decode = SlotCache(shape.zeros(self.decode_rows, kv_width))
            self._prefill = PrefillCache(shape.zeros(self.prefill_rows, prefill_width))
            self._decode_masks = _causal_mask(kv_width, shape)
            self._prefill_masks = _causal_mask(prefill_width, shape)

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """One token a slot (tokens [S] int64 at positions [S] int64) → logits of the next one [S, V] float32."""
        padding = (0, self.decode_rows - self._slots)
        return self._decode_all(np.pad(tokens, padding), np.pad(positions, padding))[: self._slots]

    def _decode_all(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            cache = self._decode
            cache.positions = torch.from_numpy(positions).to(self._device)
            mask = self._decode_masks[cache.positions][:, None, None]  # [rows, 1, 1, W]
            logits = self._run(torch.from_numpy(tokens)[:, None], mask, cache.positions[:, None], cache)
            return logits[:, 0].float().cpu().numpy()

    def prefill(self, prompts: list[tuple[int, ...]]) -> list[PromptKv]:
        """Keys and values of up to F prompts. Longer ones than P go in chunks of P; rows beyond the last prompt compute padding."""
        lengths = [-(-len(prompt) // self._width) * self._width for prompt in prompts]
        ids = np.zeros((self.prefill_rows, max(lengths)), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        with torch.inference_mode():
            for base in range(0, ids.shape[1], self._width):
                self._prefill_chunk(ids[:, base : base + self._width], base)
            return [self._prefill.storage[:, :, row, :, :n].clone() for row, n in enumerate(lengths)]

    def _prefill_chunk(self, ids: np.ndarray, base: int) -> None:
        self._prefill.base = base
        positions = torch.arange(base, base + self._width, device=self._device)
        mask = self._prefill_masks[None, None, base : base + self._width]  # [1, 1, P, W]
        self._run(torch.from_numpy(ids), mask, positions[None], self._prefill, keep=1)

    def _run(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: SlotCache | PrefillCache, keep: int = 0) -> torch.Tensor:
        output = self._model(
            input_ids=ids.to(self._device), attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=keep
        )
        return output.logits

    def install(self, slot: int, prompt: PromptKv) -> None:
        """Copy a prompt's keys and values into a slot."""
        with torch.inference_mode():
            n = min(prompt.shape[3], self._decode.storage.shape[4])
            self._decode.storage[:, :, slot, :, :n] = prompt[:, :, :, :n]

    def check_rows_agree(self, steps: int = 8) -> None:
        """Run one sequence in every row of both shapes; raise RuntimeError if two rows differ in a bit. Overwrites the caches.

        Kernels are chosen by shape, so what is seen with the weights the model has now tells of those that are loaded later. It is a sample, not a
        proof: two kernels can agree on the numbers tried here.
        """
        vocab = int(self._model.config.vocab_size)
        prompt = tuple(int(token) for token in np.arange(self._width) * 7 % vocab)
        prompts = self.prefill([prompt] * self.prefill_rows)
        if any(not torch.allclose(prompts[0], other, rtol=0.0, atol=0.0, equal_nan=True) for other in prompts):
            raise RuntimeError(_disagree("prefill_rows * prompt_width", self.prefill_rows * self._width))
        for slot in range(self.decode_rows):
            self.install(slot, prompts[0])
        for step in range(steps):
            at = min(self._width, self._decode.storage.shape[4] - steps) + step
            logits = self._decode_all(np.full(self.decode_rows, step % vocab), np.full(self.decode_rows, at))
            if not np.array_equal(logits, np.broadcast_to(logits[0], logits.shape), equal_nan=True):
                raise RuntimeError(_disagree("slots", self._slots))


def _causal_mask(width: int, shape: KvShape) -> torch.Tensor:
    """[W, W] additive: row p is 0 up to position p and -inf beyond."""
    return torch.full((width, width), float("-inf"), dtype=shape.dtype, device=shape.device).triu(1)


def _whole_vectors(rows: int, tokens: int, shape: KvShape) -> int:
    """The smallest count >= rows for which rows * tokens elements of every activation width fill whole vectors."""
    step = VECTOR // math.gcd(VECTOR, tokens * math.gcd(*shape.widths))
    return -(-rows // step) * step


def _disagree(key: str, value: int) -> str:
    return (
        f"{key} = {value}: two rows of this shape compute different bits for the same sequence on this machine, so tokens would depend on the slot "
        "they are made in; use a multiple of 32"
    )
