"""Saves and loads under way, by the member that makes them: frozen states, the blocks that these hold, and pieces of a state that comes in."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller.control import Control
from transfer_queue.controller.errors import bad
from transfer_queue.controller.freezing import freeze
from transfer_queue.controller.image import FORMAT, Image, check_empty, check_no_keys, check_spec, decoded, thawed
from transfer_queue.controller.keyed import freezing
from transfer_queue.controller.keyed.handling import Keyed
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.topic import TopicState
from transfer_queue.frozen import to_bytes
from transfer_queue.messages import PIECE_BYTES, Load, LoadPart, OkEmpty, OkImage, OkSave, ReadImage, Record

MOST_BYTES = 16 << 30  # of a state that is loaded


class FrozenSaves(Record, frozen=True):
    """What a snapshot keeps. Not the frozen states: a controller that comes back without one says so, and the saver begins again."""

    held: dict[str, np.ndarray]
    parts: dict[str, list[bytes]]


class Saves:
    def __init__(self, topics: dict[str, TopicState], keyed: Keyed, control: Control, runtime: Runtime) -> None:
        self._topics, self._keyed, self._control, self._runtime = topics, keyed, control, runtime
        self._images: dict[int, bytes] = {}
        self._image_of: dict[str, int] = {}  # owner → its image
        self._held: dict[str, np.ndarray] = {}  # owner → places, [n, 4], one for each block
        self._parts: dict[str, list[bytes]] = {}  # owner → what has come of the state to be loaded

    # ------------------------------------------------------------ save

    def save(self, owner: str) -> OkSave:
        self.forget(owner)
        if self._held:
            raise bad(f"{next(iter(self._held))} saves this queue: one save at a time, for each holds what is freed meanwhile; wait for its end")
        image = Image(
            format=FORMAT,
            specs=[topic.spec for topic in self._topics.values()],
            topics={name: freeze(topic) for name, topic in self._topics.items()},
            duties=self._control.duties.freeze(),
            now=self._runtime.now(),
            serials=self._runtime.serials,
            keyed=freezing.freeze(self._keyed),
        )
        number = self._runtime.serial()
        self._images[number], self._image_of[owner] = to_bytes(image), number
        self._hold(owner, self._runtime.blocks.all())
        self._runtime.emit("run", reason="save", member=owner)
        return OkSave(image=number, nbytes=len(self._images[number]))

    def _hold(self, owner: str, places: np.ndarray) -> None:
        self._held[owner] = places
        self._runtime.blocks.hold(places)

    def read(self, request: ReadImage) -> OkImage:
        image = self._images.get(request.image)
        if image is None or not 0 <= request.start <= len(image):
            raise bad(f"image={request.image}, start={request.start}: there is no such image any more, or no such byte of it; begin the save again")
        return OkImage(data=image[request.start : request.start + PIECE_BYTES])

    def forget(self, owner: str) -> OkEmpty:
        """Its save is over, whether it came to its end or not; so is its load."""
        self._images.pop(self._image_of.pop(owner, -1), None)
        self._parts.pop(owner, None)
        held = self._held.pop(owner, None)
        if held is not None:
            self._runtime.blocks.release(held)
        return OkEmpty()

    # ------------------------------------------------------------ load

    def part(self, owner: str, request: LoadPart) -> OkEmpty:
        if request.start == 0:
            self._parts[owner] = []
        parts = self._parts.get(owner, [])
        have, everybody = sum(map(len, parts)), sum(len(part) for mine in self._parts.values() for part in mine)
        if request.start + len(request.data) <= have and request.start:
            return OkEmpty()  # a repeat
        if request.start != have or everybody + len(request.data) > MOST_BYTES:
            raise bad(f"start={request.start} of {len(request.data)} bytes, {have} have come and {MOST_BYTES} are the most; begin the load again")
        self._parts[owner] = [*parts, request.data]
        return OkEmpty()

    def load(self, owner: str, request: Load) -> OkEmpty:
        """All topics and partitions, or none."""
        data = b"".join(self._parts.pop(owner, []))
        if len(data) != request.nbytes:
            raise bad(f"nbytes={request.nbytes} of a load, {len(data)} have come: nothing was loaded; begin the load again")
        image = decoded(data)
        for topic in self._topics.values():
            check_empty(topic)
            check_spec(topic.spec, image.specs)
        check_no_keys(self._keyed)
        self._runtime.skip_serials(image.serials)
        freezing.thaw(self._keyed, image.keyed)
        for name, topic in list(self._topics.items()):
            self._topics[name] = thawed(topic, self._runtime, image)
            self._control.loaded(self._topics[name])
        self._control.duties.load(image.duties)
        self._control.desired.changed()
        self._runtime.wake("all")
        self._runtime.touch()
        self._runtime.emit("run", reason="load", member=owner)
        return OkEmpty()

    # ------------------------------------------------------------ snapshots

    def freeze(self) -> FrozenSaves:
        return FrozenSaves(self._held, self._parts)

    def thaw(self, frozen: FrozenSaves) -> None:
        """After the topics."""
        self._parts = frozen.parts
        for owner, places in frozen.held.items():
            self._hold(owner, places)
