"""What a complete set of weights is, from the model's config.json alone: vLLM itself takes whatever comes and leaves the rest as it was."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from asyncflow.engines.rollout.vllm.staging import Staged
from checkpoint_engine.manifest import dtype_name


def meta_model(folder: Path, dtype: str) -> PreTrainedModel:
    """The Hugging Face model of a folder without memory for its weights: names, shapes, dtype, configuration."""
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"model path {str(folder)!r} holds no config.json: vLLM is not started; name a folder of Hugging Face files")
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model


class ExpectedWeights:
    """Names, shapes and dtypes of a model's parameters under their Hugging Face names."""

    def __init__(self, model: torch.nn.Module) -> None:
        named = dict(model.named_parameters(remove_duplicate=False))
        self._parameters = {name: (tuple(parameter.shape), dtype_name(parameter.dtype)) for name, parameter in named.items()}
        self._same = {name: id(parameter) for name, parameter in named.items()}  # tied ones are one parameter under several names

    def check(self, staged: Staged) -> None:
        """Raise ValueError unless this is the whole model: every parameter once, with its shape and dtype; a tied one under any of its names,
        under several with equal values."""
        label = str(staged.manifest.weights)
        came: dict[int, torch.Tensor] = {}
        for meta, tensor in staged.tensors():
            if meta.name not in self._parameters:
                raise _refused(label, f"tensor {meta.name!r} is unknown to the model")
            expected, found = self._parameters[meta.name], (meta.shape, meta.dtype)
            if found != expected:
                raise _refused(label, f"tensor {meta.name!r} is {_words(*found)}, the model's {_words(*expected)}")
            twin = came.setdefault(self._same[meta.name], tensor)
            if twin is not tensor and not torch.equal(_bits(twin), _bits(tensor)):
                raise _refused(label, f"tensor {meta.name!r} came under a tied name with other values")
        missing = sorted(name for name, key in self._same.items() if key not in came)
        if missing:
            raise _refused(label, f"{len(missing)} tensors are missing, the first is {missing[0]!r}")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A NaN equals itself here: it is a value like any other to whoever moves it."""
    return tensor.reshape(-1).view(torch.uint8)


def _words(shape: tuple[int, ...], dtype: str) -> str:
    return f"{dtype} {list(shape)}"


def _refused(label: str, rule: str) -> ValueError:
    return ValueError(f"weights {label} are refused: {rule}; what was loaded before goes on serving; publish a complete set of this model's weights")
