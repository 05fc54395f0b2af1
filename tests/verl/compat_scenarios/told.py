"""How a scenario is marked, and how an answer is told: by value and type, that is dtype, layout, offsets, bits, order; an error by its kind, the
built-in class that a caller would catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict

Scenario = Callable[[Any, str], Any]
SCENARIOS: dict[str, Scenario] = {}
OURS: dict[str, Any] = {}  # name → what ours answers, where it is another answer on purpose; docs/verl.md says why
KINDS = (ValueError, TypeError, KeyError, IndexError, AttributeError, TimeoutError, AssertionError, RuntimeError)
NESTED = torch.nested.as_nested_tensor


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def differs(ours: Any) -> Callable[[Scenario], Scenario]:
    def mark(function: Scenario) -> Scenario:
        OURS[function.__name__] = ours
        return scenario(function)

    return mark


def told(value: Any) -> Any:
    """Plain data that is the same only for what is the same to a caller."""
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            ragged = value._ragged_idx if value.layout is torch.jagged else None  # type: ignore[attr-defined]
            seen = [told(value.offsets()), told(value.values())] if value.layout is torch.jagged else []
            return ["nested", str(value.layout), ragged, [told(row) for row in value.unbind()], *seen]
        bits = value.contiguous().reshape(-1).view(torch.uint8).tolist() if value.numel() else []
        return ["tensor", str(value.dtype), list(value.shape), bits]
    if isinstance(value, NonTensorStack):
        return ["NonTensorStack", [told(each) for each in value.tolist()]]
    if isinstance(value, TensorDict):
        return ["TensorDict", list(value.batch_size), {name: told(value.get(name)) for name in value.keys()}, list(value.keys())]  # noqa: SIM118
    if type(value).__name__ == "KVBatchMeta":
        return ["KVBatchMeta", value.keys, told(value.tags), value.partition_id, value.fields, told(value.extra_info), len(value), value.size]
    if type(value).__name__ == "BatchMeta":  # its numbers are each package's own
        told_tags = told(value.get_all_custom_meta())
        return ["BatchMeta", value.size, value.partition_ids, value.field_names, value.is_ready, told_tags, told(value.extra_info), len(value)]
    if isinstance(value, np.ndarray | np.generic):
        return [type(value).__name__, str(value.dtype), list(value.shape), told(value.tolist())]
    if isinstance(value, dict):
        return [type(value).__name__, [[told(key), told(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [type(value).__name__, [told(item) for item in items]]
    return [type(value).__name__, repr(value)]


def kind(call: Callable[[], Any]) -> str:
    """How `call` fails: the first of KINDS."""
    try:
        call()
    except Exception as error:
        return next((each.__name__ for each in KINDS if isinstance(error, each)), type(error).__name__)
    return "no error"


def batch(rows: int = 3) -> TensorDict:
    runs = [torch.arange(length) for length in (2, 3, 1, 4)[:rows]]
    return TensorDict(
        {
            "scalar": torch.arange(rows) + 0.5,
            "dense": torch.arange(rows * 2.0).reshape(rows, 2),
            "runs": NESTED(runs, layout=torch.jagged),
            "text": NonTensorStack(*[f"text {row}" for row in range(rows)]),
        },
        batch_size=[rows],
    )


KEYS = ["uid-a_0_0", "uid-a_1_0", "uid-b_0_0"]
