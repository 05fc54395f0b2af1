"""Log-probabilities of response tokens under a causal model: the one forward pass that training and forward stages share."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from asyncflow.contracts.batch import RowBatch


def response_log_probs(model: PreTrainedModel, batch: RowBatch, *, with_entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(log-probabilities, entropy or None), both [R, T] float32, after temperature, 0 at padding.

    No attention mask is passed: rows are padded on the right, and a causal model's token sees nothing to its right. The head runs over response
    positions only.
    """
    width, response_width = batch.input_ids.shape[1], batch.response_mask.shape[1]
    steps = torch.arange(response_width, device=batch.input_ids.device)
    targets_at = (batch.prompt_lens[:, None] + steps).clamp(max=width - 1)  # [R, T] place of response token j; clamped places are padding
    hidden = model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state  # [R, W, H]
    hidden = hidden.gather(1, (targets_at - 1)[..., None].expand(-1, -1, hidden.shape[-1]))  # [R, T, H] the token before
    head = model.get_output_embeddings()
    logits = head(hidden).float() / batch.temperature  # [R, T, V]
    log_softmax = logits.log_softmax(dim=-1)
    targets = batch.input_ids.gather(1, targets_at)
    zero = logits.new_zeros(())
    log_probs = torch.where(batch.response_mask, log_softmax.gather(2, targets[..., None])[..., 0], zero)
    if not with_entropy:
        return log_probs, None
    entropy = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    return log_probs, torch.where(batch.response_mask, entropy, zero)
