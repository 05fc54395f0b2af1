"""Weights arrive whole or not at all: a set is copied aside and compared with the model by name, shape and dtype before a parameter is touched."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from checkpoint_engine.slot import Lease


def load_complete(model: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], label: str) -> None:
    """Copy a complete set under Hugging Face names into `model`, or raise ValueError and leave every parameter as it was.

    Each tensor is cloned when it is yielded: the iterator may reuse its buffer for the next one. Those of a host cache stay as they are while they
    are leased, and need no second model in memory. A tied parameter is expected under one of its names; under several the values must agree.
    """
    stable = isinstance(tensors, Lease)
    names = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    parameters = {id(parameter): parameter for parameter in model.parameters()}
    staged: dict[int, torch.Tensor] = {}
    for name, tensor in tensors:
        if name not in names:
            raise ValueError(_refuse(label, f"tensor {name!r} is unknown to the model"))
        key = names[name]
        _check_fits(label, name, tensor, parameters[key])
        if key in staged and not torch.equal(staged[key], tensor):
            raise ValueError(_refuse(label, f"tensor {name!r} came twice, or under a tied name, with other values"))
        staged[key] = tensor.detach() if stable else tensor.detach().clone()
    missing = sorted(name for name, key in names.items() if key not in staged)
    if missing:
        raise ValueError(_refuse(label, f"{len(missing)} tensors are missing, the first is {missing[0]!r}"))
    with torch.no_grad():
        for key, tensor in staged.items():
            parameters[key].copy_(tensor)


def _check_fits(label: str, name: str, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
    if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
        got, want = f"{list(tensor.shape)} {tensor.dtype}", f"{list(parameter.shape)} {parameter.dtype}"
        raise ValueError(_refuse(label, f"tensor {name!r} is {got} where the model has {want}"))


def _refuse(label: str, why: str) -> str:
    return f"weights {label} are refused: {why}; the old weights go on serving; publish the complete set of the same architecture"
