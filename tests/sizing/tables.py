"""Cost tables of the tests: the default one, smaller, so that a run of the model takes milliseconds."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncflow.sizing.costs import CostTable, Lengths, Split
from asyncflow.sizing.load import DEFAULT_TABLE, load_costs


def default() -> CostTable:
    return load_costs(DEFAULT_TABLE)


def changed(costs: CostTable, **parts: Any) -> CostTable:
    """`decode={"max_running": 8}` changes fields of a part, `batch_groups=4` replaces a value."""
    fields = {name: msgspec.structs.replace(getattr(costs, name), **part) if isinstance(part, dict) else part for name, part in parts.items()}
    return msgspec.structs.replace(costs, **fields)


def equal(length: int = 500, **parts: Any) -> CostTable:
    """Every response as long as any other; a batch of 8 groups of 4."""
    lengths = Lengths(law="constant", mean=length, sigma=0.0, cap=length, prompt=100, seed=0)
    train = {"minibatch_groups": 2, "minibatch_s": 0.5}
    small = changed(default(), lengths=lengths, batch_groups=8, group_rows=4, train=train, split=Split(4, 1, 1, 2))
    return changed(small, **parts)


def tailed(parts: int = 4) -> CostTable:
    """The default table with a part of its batch, and a split of 16 devices."""
    costs = default()
    return changed(
        costs, batch_groups=costs.batch_groups // parts, train={"minibatch_groups": costs.train.minibatch_groups // parts}, split=Split(12, 1, 1, 2)
    )
