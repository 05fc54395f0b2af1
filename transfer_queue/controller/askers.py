"""Who asks for work at which stage, and since when in vain: what a stall report needs to tell a member that waits from one that does not come back.

A member that waits asks again every half minute, so the age of its parked request does not tell how long it has waited: this does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REASK_S = 2.0  # a member whose request was just answered with nothing still counts as waiting: the next one is on its way


@dataclass(slots=True, eq=False)
class Asker:
    owner: str  # "name#incarnation"
    asked_at: float
    vain_since: float | None  # first request since the last grant that got nothing; None: it was granted something and has not asked again
    parked: bool


class Askers:
    """By stage and member name. Names are few and stable (`members.MAX_NAMES`), so it does not grow with the run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._stages: dict[str, dict[str, Asker]] = {}

    def note(self, stage: str, owner: str, granted: bool, parked: bool) -> None:
        """After each attempt to serve a request. `parked`: it was not answered yet."""
        name, now = owner.rpartition("#")[0], self._now()
        known = self._stages.setdefault(stage, {}).get(name)
        since = known.vain_since if known is not None and known.owner == owner else None
        self._stages[stage][name] = Asker(owner, now, None if granted else now if since is None else since, parked)

    def ended(self, owner: str) -> None:
        """The member is no more; that it once asked is still known."""
        for askers in self._stages.values():
            asker = askers.get(owner.rpartition("#")[0])
            if asker is not None and asker.owner == owner:
                asker.vain_since = None

    def freeze(self) -> dict[str, dict[str, Asker]]:
        return self._stages

    def thaw(self, frozen: dict[str, dict[str, Asker]]) -> None:
        self._stages = frozen

    def of(self, stage: str) -> dict[str, Asker]:
        """By member name: everybody who ever asked here, with its last incarnation."""
        return self._stages.get(stage, {})

    def waiting(self, stage: str) -> dict[str, float]:
        """Owner → since when it waits here."""
        now = self._now()
        return {
            asker.owner: asker.vain_since
            for asker in self.of(stage).values()
            if asker.vain_since is not None and (asker.parked or now - asker.asked_at < REASK_S)
        }
