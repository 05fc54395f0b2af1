"""A model of two layers in a folder, with a tokenizer that verl is content with: single tokens for "\\n" and `<|im_end|>`, a chat template, as many
tokens as the vocabulary has rows."""

from __future__ import annotations

import sys
from pathlib import Path

VOCABULARY = 64
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny(folder: Path) -> Path:
    """Qwen2 with heads of 32 (vLLM's kernel for CPUs refuses smaller ones)."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = ["Ċ", "Ġ", *"0123456789+-=*?.,:abcdefghijklmnopqrstuvwxyz"]  # as ByteLevel writes a new line and a space
    tokens = special + letters
    tokens += [f"<|unused{i}|>" for i in range(VOCABULARY - len(tokens))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))  # of the kind that transformers loads for Qwen2 in any case
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>"]}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    make_tiny(Path(sys.argv[1]))
