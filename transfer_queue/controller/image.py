"""What is the queue's own of a controller's state: what a save takes along, and a load brings back.

Prompts, groups, rows, the ledger, clocks, duties and keyed partitions. Members, their requests and what they were told are another run's; what they
had under way is ready again.
"""

from __future__ import annotations

import msgspec

from transfer_queue.controller import ending
from transfer_queue.controller.duties import FrozenDuty
from transfer_queue.controller.errors import bad
from transfer_queue.controller.freezing import FrozenTopic, thaw
from transfer_queue.controller.keyed.freezing import FrozenPartition
from transfer_queue.controller.keyed.handling import Keyed
from transfer_queue.controller.leases import FrozenLeases
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.topic import TopicState
from transfer_queue.frozen import from_bytes
from transfer_queue.messages import Record, TopicSpec

FORMAT = 5
SAVED = "saved"  # why what was under way is not any more


class Image(Record, frozen=True):
    format: int
    specs: list[TopicSpec]
    topics: dict[str, FrozenTopic]
    duties: list[FrozenDuty]
    now: float  # of the controller's clock
    serials: int
    keyed: dict[str, FrozenPartition] = msgspec.field(default_factory=dict)


def decoded(data: bytes) -> Image:
    """Raises RequestError for what is no image."""
    try:
        image = from_bytes(Image, data)
    except (msgspec.DecodeError, ValueError, IndexError) as error:
        raise bad(f"{len(data)} bytes are no image of format {FORMAT}: {error}; nothing was loaded. Load what `save` wrote") from error
    if image.format != FORMAT:
        raise bad(f"image of format {image.format}, this release reads {FORMAT}: nothing was loaded; save it again with this one")
    return image


def check_empty(topic: TopicState) -> None:
    """Raises RequestError where something would be lost by a load."""
    if topic.ledger.lives or len(topic.prompts) or topic.prompts.cursor or topic.version:
        raise bad(f"topic {topic.name!r} is not empty: a load would undo what is there; nothing was loaded. Load before the first prompt is put")


def check_no_keys(keyed: Keyed) -> None:
    """The same of keyed partitions."""
    if keyed.partitions:
        raise bad(f"partitions {sorted(keyed.partitions)[:8]} have keys: a load would mix two stores; nothing was loaded. Load before the first put")


def check_spec(mine: TopicSpec, specs: list[TopicSpec]) -> None:
    """Raises RequestError where the tables of the two could not be the same. The window may be another."""
    theirs = next((spec for spec in specs if spec.name == mine.name), None)
    if theirs is None or (theirs.digest(), theirs.model) != (mine.digest(), mine.model):
        found = "is not in the image" if theirs is None else "has other columns, consumers or another model in the image"
        raise bad(f"topic {mine.name!r} {found}: nothing was loaded; start the controller with the topics that were saved")


def thawed(mine: TopicState, runtime: Runtime, image: Image) -> TopicState:
    """The topic of the image in place of `mine`, which is empty; nobody has anything of it."""
    frozen, shift_s = image.topics[mine.name], runtime.now() - image.now
    topic = TopicState(mine.spec, runtime, mine.lease_s)
    thaw(topic, _without_members(frozen))
    groups = topic.groups.groups
    groups.since[topic.groups.all()] += shift_s
    owners = {attempt.holder for attempt in frozen.attempts} | {lease.owner for lease in frozen.leases.current}
    topic.ledger.tell_all(SAVED)
    for owner in sorted(owners):
        ending.forget_owner(topic, owner, SAVED)
    for replays in topic.replays.values():
        replays.loaded()
    return topic


def _without_members(frozen: FrozenTopic) -> FrozenTopic:
    """Deadlines of another controller mean nothing here; who had the leases is told that they end at once. Ranks begin anew, together."""
    return msgspec.structs.replace(
        frozen,
        attempts=[msgspec.structs.replace(attempt, due=None) for attempt in frozen.attempts],
        leases=FrozenLeases([msgspec.structs.replace(lease, due=None) for lease in frozen.leases.current], []),
        askers={},
        progress_at={},
        receipts={},
        rounds={number: rounds.ended() for number, rounds in frozen.rounds.items()},
    )
