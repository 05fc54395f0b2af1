"""A slot of the publisher's that is mapped here instead of copied: one version in memory, however many receivers a host has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Loan:
    """`number`: of the publisher's lease. `give_back(loan, tainted)` when it is needed no more; `tainted`: somebody may still read there.

    It runs under the cache's lock, on whichever thread ended the last use: it may only take a note.
    """

    number: int
    give_back: Callable[[Loan, bool], None]
