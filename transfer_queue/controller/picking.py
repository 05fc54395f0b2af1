"""What a take gets out of one consumer's ready set, in the order of its sampler."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transfer_queue.controller.readiness import ReadySet
from transfer_queue.messages import Record
from transfer_queue.samplers.candidates import WINDOW, Candidates
from transfer_queue.samplers.choice import Choices
from transfer_queue.samplers.declared import Plan
from transfer_queue.samplers.guard import Guard


class FrozenPicker(Record, frozen=True):
    """What a snapshot keeps."""

    mixed: int
    fallbacks: int
    fault: str


class Picker:
    """Orders that have an index are served from the front of the set's shelves. One's own looks at a window of them, whose size goes by the take."""

    def __init__(
        self,
        ready: ReadySet,
        plan: Plan,
        candidates: Callable[[np.ndarray], Candidates],
        remove: Callable[[np.ndarray], None],
        tell: Callable[[str, int], None],
        choices: Choices,
    ) -> None:
        """`candidates`, `remove`: of slots that lie in `ready`, what a sampler sees of them, and take them out of it. `tell` as in Guard, and for
        batches that could not be of one version; `choices` as in Guard."""
        self.plan = plan
        self.guard = Guard(plan.choose, tell, choices=choices) if plan.choose is not None else None
        self.mixed = 0  # batches of several versions, where they should have had one
        self._ready, self._candidates, self._remove, self._tell = ready, candidates, remove, tell

    @property
    def fallbacks(self) -> int:
        return self.mixed if self.guard is None else self.guard.fallbacks

    @property
    def fault(self) -> str:
        return MIXED if self.mixed else self.guard.fault if self.guard is not None else ""

    def pop(self, limit: int, loaded: int | None, at_least: int = 1) -> np.ndarray:
        """Take up to `limit` items out; their slots, in order. Fewer than `at_least` only where fewer are there; same_version takes one version."""
        if self.guard is not None:
            return self._pick(self.guard, limit, at_least, self._ready.peek(max(WINDOW, 2 * limit), loaded))
        if self.plan.order == "same_version":
            counts = self._ready.counts(loaded)
            version = next((version for version, count in counts.items() if count >= at_least), next(iter(counts), None))
            return np.zeros(0, dtype=np.int64) if version is None else self._ready.pop_version(version, limit, loaded)
        return self._ready.pop(limit, loaded)

    def pop_version(self, version: int, limit: int, loaded: int | None) -> np.ndarray:
        """The same, of one version only."""
        if self.guard is not None:
            return self._pick(self.guard, limit, 1, self._ready.peek(max(WINDOW, 2 * limit), loaded, version))
        return self._ready.pop_version(version, limit, loaded)

    def pop_mixed(self, limit: int, loaded: int | None) -> np.ndarray:
        """Of several versions, oldest first, though they should be of one: counted and told."""
        self.mixed += 1
        if self.mixed & (self.mixed - 1) == 0:
            self._tell(MIXED, self.mixed)
        return self._ready.pop(limit, loaded)

    def most(self, loaded: int | None) -> int:
        """Items that one take could have now."""
        if self.plan.order == "same_version":
            return max(self._ready.counts(loaded).values(), default=0)
        return self._ready.count(loaded)

    def freeze(self) -> FrozenPicker:
        fallbacks, fault = (0, "") if self.guard is None else (self.guard.fallbacks, self.guard.fault)
        return FrozenPicker(self.mixed, fallbacks, fault)

    def thaw(self, frozen: FrozenPicker) -> None:
        self.mixed = frozen.mixed
        if self.guard is not None:
            self.guard.fallbacks, self.guard.fault = frozen.fallbacks, frozen.fault

    def _pick(self, guard: Guard, limit: int, at_least: int, slots: np.ndarray) -> np.ndarray:
        if not len(slots):
            return slots
        chosen = slots[guard.pick(self._candidates(slots), limit, at_least)]
        self._remove(chosen)
        return chosen


MIXED = "no version can fill the batch and no more groups can come: it is filled with the oldest versions there are"
