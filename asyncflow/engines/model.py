"""How a model comes into being and how its weights are named: one place for rollout, forward and train engines.

Names are Hugging Face's, a tied tensor is named once, so that what a trainer publishes is what every receiver expects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # a bar makes a named semaphore, which a worker that is killed leaves in /dev/shm


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small Qwen2-architecture causal language model. head_dim 32 is the smallest that vLLM's CPU attention takes."""

    vocab_size: int
    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None  # None: as many as heads; fewer, a divisor of them: grouped-query attention
    head_dim: int = 32
    max_positions: int = 512
    tied: bool = True  # lm_head shares the embedding's tensor
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    seed: int = 0  # of the random initial weights


def qwen2_config(shape: ModelShape) -> Qwen2Config:
    kv_heads = shape.heads if shape.kv_heads is None else shape.kv_heads
    if kv_heads < 1 or shape.heads % kv_heads:
        raise ValueError(f"model.kv_heads = {kv_heads} must divide model.heads = {shape.heads}; no model is built; choose a divisor")
    return Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
        pad_token_id=shape.pad_token_id,
        bos_token_id=shape.bos_token_id,
        eos_token_id=shape.eos_token_id,
        attn_implementation="sdpa",
    )


def build_model(config: ModelShape | Qwen2Config, seed: int | None = None) -> Qwen2ForCausalLM:
    """Random float32 weights from `seed` (default: the shape's, else 0). The global random state of torch is left as it was."""
    if isinstance(config, ModelShape):
        seed = config.seed if seed is None else seed
        config = qwen2_config(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0 if seed is None else seed)
        return Qwen2ForCausalLM(config).float()


def load_hf(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Read a causal language model from local Hugging Face files (config.json and safetensors); nothing is fetched.

    Raises FileNotFoundError for a folder without config.json, ValueError where the files cannot be read or do not hold exactly this model's weights,
    all of them finite: transformers would fill what is missing with random numbers, others in every process, and leave away what is too much.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"model path {str(folder)!r} holds no config.json: no model is loaded; name a folder of Hugging Face files (export or warm-start one)"
        )
    settings = {"dtype": dtype, "attn_implementation": "sdpa", "local_files_only": True, "use_safetensors": True}
    try:
        model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **settings)
    except (OSError, RuntimeError, SafetensorError) as error:  # no weights, of other shapes, cut off
        raise ValueError(_refused(folder, f"its weights cannot be read ({type(error).__name__}: {error})")) from error
    if lost := sorted(found["missing_keys"]):
        raise ValueError(_refused(folder, f"its files lack {len(lost)} of the model's tensors, the first is {lost[0]!r}"))
    if surplus := sorted(found["unexpected_keys"]):
        raise ValueError(_refused(folder, f"its config.json describes a model without {len(surplus)} of its tensors, the first is {surplus[0]!r}"))
    for name, parameter in model.named_parameters():
        if parameter.numel() and not all(bound.isfinite() for bound in parameter.detach().aminmax()):
            raise ValueError(_refused(folder, f"its tensor {name!r} holds NaN or infinite numbers"))
    return cast(PreTrainedModel, model)


def _refused(folder: Path, why: str) -> str:
    return f"model path {str(folder)!r} is refused: {why}; no model is loaded; name a folder that holds this model's weights, whole and finite"


def hf_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every parameter under its Hugging Face name, sorted; a tied one once, under the name that comes first in the module.

    Tensors are the live ones, detached: copy before the next optimizer step.
    """
    yield from sorted((name, parameter.detach()) for name, parameter in model.named_parameters(remove_duplicate=True))
