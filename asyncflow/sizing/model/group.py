"""A group in the simulation: the open record that is a permit, as in `transfer_queue/controller/group.py`, without its bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncflow.sizing.model.replica import Replica


@dataclass(slots=True, eq=False)
class SimGroup:
    gid: int
    version: int  # of its oldest token
    lengths: list[int]  # [rows] tokens
    replica: Replica
    missing: int  # outputs of forward stages, one a row and stage, that are not there yet; without such stages the rows themselves
    leased: bool = False  # in the trainer's batch: it cannot expire any more
    open: bool = True
    tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = sum(self.lengths)
