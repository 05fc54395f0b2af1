"""Prompts that wait for admission, the source's cursor, and the run's count: the prompts half of a topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from transfer_queue.controller.blocks import Blocks, places_of
from transfer_queue.messages import PromptPut, Record

MOST = 1 << 62  # above every gid


class FrozenPrompts(Record, frozen=True):
    """What a snapshot keeps."""

    cursor: int
    target: int | None
    floor: int
    above: list[int]
    waiting: list[tuple[PromptPut, int]]
    returning: dict[int, int] = msgspec.field(default_factory=dict)


class Seen:
    """The set of gids ever put, as a floor and what lies above it: gids are dense, so it stays small."""

    def __init__(self) -> None:
        self._floor = 0  # every gid below was put
        self._above: set[int] = set()

    def __contains__(self, gid: int) -> bool:
        return gid < self._floor or gid in self._above

    def add(self, gid: int) -> None:
        self._above.add(gid)
        self._settle()

    def add_all(self, gids: Sequence[int]) -> None:
        """None of them is there yet."""
        if isinstance(gids, range) and gids.start == self._floor:
            self._floor = gids.stop
        else:
            self._above.update(gids)
        self._settle()

    def freeze(self) -> tuple[int, list[int]]:
        return self._floor, sorted(self._above)

    def thaw(self, floor: int, above: list[int]) -> None:
        self._floor, self._above = floor, set(above)

    def remove(self, gids: set[int]) -> None:
        """They count as never put."""
        floor = min(self._floor, *gids)
        self._above.update(range(floor, self._floor))
        self._above -= gids
        self._floor = floor

    def _settle(self) -> None:
        while self._floor in self._above:
            self._above.discard(self._floor)
            self._floor += 1


class PromptQueue:
    """First in, first out. A waiting prompt owns its shared columns' blocks; admission passes them on to the group."""

    def __init__(self, bound: int, blocks: Blocks) -> None:
        self.bound = bound
        self.cursor = 0  # the next gid the source would put
        self.target: int | None = None  # groups to train in all; None until the source closes the topic
        self._blocks = blocks
        self._seen = Seen()
        self._waiting: deque[tuple[PromptPut, int]] = deque()  # with the life the prompt would start
        self._returning: dict[int, int] = {}  # gid → the same, of those that the source is to put again: no later one is admitted before them

    def __len__(self) -> int:
        return len(self._waiting)

    def new(self, prompts: list[PromptPut]) -> list[PromptPut]:
        """Those that were never put, once each."""
        found = {prompt.gid: prompt for prompt in reversed(prompts) if prompt.gid not in self._seen}
        return [prompt for prompt in prompts if found.get(prompt.gid) is prompt]

    def was_put(self, gid: int) -> bool:
        return gid in self._seen

    def number(self, count: int) -> np.ndarray:
        """[count] gids for groups that come without one: those that follow the last."""
        gids = range(self.cursor, self.cursor + count)
        self._see(gids)
        return np.arange(gids.start, gids.stop)

    def see(self, gids: np.ndarray) -> None:
        """Groups that were put whole; none of these gids was put before."""
        first, dense = gids.item(0), bool((gids[1:] == gids[:-1] + 1).all())
        self._see(range(first, first + len(gids)) if dense else gids.tolist())

    def _see(self, gids: Sequence[int]) -> None:
        self._seen.add_all(gids)
        self.cursor = max(self.cursor, gids[-1] + 1 if isinstance(gids, range) else max(gids) + 1)

    def has_room(self, count: int) -> bool:
        return count <= self._room

    @property
    def most(self) -> int:
        """How many there is room for while nothing waits. Those that come again had theirs, and nothing goes on without them."""
        return self.bound + len(self._returning)

    @property
    def _room(self) -> int:
        return self.most - len(self._waiting)

    def put(self, prompts: list[PromptPut], cursor: int) -> None:
        """Store new prompts and the cursor, as one step."""
        again = bool(self._returning)
        for prompt in prompts:
            self._seen.add(prompt.gid)
            self._blocks.hold_each((piece.shard, piece.block) for piece in prompt.columns.values())
            self._waiting.insert(self._place_of(prompt.gid), (prompt, self._returning.pop(prompt.gid, 0)))
        self.cursor = min(max(self.cursor, cursor), *self._returning, MOST)  # a put that was under way when they were lost goes past them
        while again and self.cursor in self._seen:
            self.cursor += 1

    def _place_of(self, gid: int) -> int:
        """One that comes again goes where it was: in front of those that follow on it."""
        if gid not in self._returning:
            return len(self._waiting)
        return next((at for at, (prompt, _) in enumerate(self._waiting) if prompt.gid > gid), len(self._waiting))

    def requeue(self, prompt: PromptPut, life: int) -> None:
        """A dropped group's prompt comes back first; it keeps its blocks."""
        self._waiting.appendleft((prompt, life))

    def pop(self) -> tuple[PromptPut, int]:
        return self._waiting.popleft()

    def discard_all(self) -> None:
        """The run is over: what waits is never admitted."""
        for prompt, _ in self._waiting:
            self._blocks.release(places_of(prompt.columns.values()))
        self._waiting.clear()
        self._returning.clear()

    def lose(self, shard: int, before: int, rewinds: bool) -> int:
        """Blocks of `shard` below `before` are gone: prompts that lay there were never put, and the source is asked for them again; how many. One
        that had a life already is not, unless the source `rewinds`: its next one takes the place."""
        lost = [entry for entry in self._waiting if any(piece.shard == shard and piece.block < before for piece in entry[0].columns.values())]
        if not lost:
            return 0
        for prompt, _ in lost:
            self._blocks.release(places_of(prompt.columns.values()))
        ids = {id(entry) for entry in lost}
        self._waiting = deque(entry for entry in self._waiting if id(entry) not in ids)
        if rewinds:
            self.ask_again({prompt.gid: life for prompt, life in lost})
        elif again := {prompt.gid for prompt, life in lost if life == 0}:
            self._forget(again)
        return len(lost)

    def ask_again(self, lives: dict[int, int]) -> None:
        """The source is to put these once more (gid → the life that it starts), before anything that follows on them is admitted."""
        if lives:
            self._forget(set(lives))
            self._returning |= lives

    def _forget(self, gids: set[int]) -> None:
        self._seen.remove(gids)
        self.cursor = min(self.cursor, *gids)

    def freeze(self) -> FrozenPrompts:
        floor, above = self._seen.freeze()
        return FrozenPrompts(self.cursor, self.target, floor, above, list(self._waiting), dict(self._returning))

    def thaw(self, frozen: FrozenPrompts) -> None:
        self.cursor, self.target = frozen.cursor, frozen.target
        self._seen.thaw(frozen.floor, frozen.above)
        self._waiting.extend(frozen.waiting)
        self._returning.update(frozen.returning)
        for prompt, _ in frozen.waiting:
            self._blocks.hold(places_of(prompt.columns.values()))

    def wanted(self, trained: int, open_groups: int) -> int:
        """How many more the source may put now: as many as fit, and with a target no more than can still be used."""
        room = max(0, self._room)
        if self.target is None:
            return room
        return max(0, min(room, self.target - trained - open_groups - len(self._waiting)))

    def admits(self, trained: int, open_groups: int) -> bool:
        """A prompt waits, and the target leaves it a place: admitted groups never exceed the target plus replacements of dropped ones."""
        return self.has_next and (self.target is None or trained + open_groups < self.target)

    @property
    def has_next(self) -> bool:
        """A prompt waits, and none that goes before it comes again."""
        return bool(self._waiting) and min(self._returning, default=MOST) > self._waiting[0][0].gid
