"""A topic as a snapshot keeps it, and back. Ready sets, batches, who holds what and references to blocks follow from it."""

from __future__ import annotations

import msgspec

from transfer_queue.controller import leasing
from transfer_queue.controller.askers import Asker
from transfer_queue.controller.group import Attempt, FrozenAttempt, Group
from transfer_queue.controller.leases import FrozenLeases
from transfer_queue.controller.picking import FrozenPicker
from transfer_queue.controller.prompts import FrozenPrompts
from transfer_queue.controller.receipts import Kept
from transfer_queue.controller.replays import FrozenReplays
from transfer_queue.controller.rounds import FrozenRounds
from transfer_queue.controller.store import FrozenStore
from transfer_queue.controller.terminal import FrozenTerminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Record


class FrozenTopic(Record, frozen=True):
    store: FrozenStore
    attempts: list[FrozenAttempt]
    counts: dict[str, int]  # of the ledger
    prompts: FrozenPrompts
    reissues: list[tuple[int, int, int]]
    leases: FrozenLeases
    askers: dict[str, dict[str, Asker]]
    progress_at: dict[str, float]
    terminals: dict[int, FrozenTerminal]
    rounds: dict[int, FrozenRounds]
    pickers: list[FrozenPicker]  # by consumer
    done_rows: list[int]
    receipts: Kept
    given: int
    late: int
    lost_attempts: int
    expired: list[int]
    over: bool
    replays: dict[int, FrozenReplays] = msgspec.field(default_factory=dict)


def freeze(topic: TopicState) -> FrozenTopic:
    """It shares what is no array with the topic: encode it before that changes."""
    return FrozenTopic(
        store=topic.groups.freeze(),
        attempts=[attempt.freeze(slot) for slot, attempt in topic.groups.attempts.items()],
        counts=topic.ledger.counts,
        prompts=topic.prompts.freeze(),
        reissues=topic.reissues.freeze(),
        leases=topic.leases.freeze(),
        askers=topic.askers.freeze(),
        progress_at=topic.progress_at,
        terminals={number: terminal.freeze() for number, terminal in topic.terminals.items()},
        rounds={number: rounds.freeze() for number, rounds in topic.rounds.items()},
        pickers=topic.queues.freeze(),
        done_rows=topic.done_rows,
        receipts=topic.receipts.freeze(),
        given=topic.given,
        late=topic.late,
        lost_attempts=topic.lost_attempts,
        expired=topic.expired,
        over=topic.over,
        replays={number: replays.freeze() for number, replays in topic.replays.items()},
    )


def thaw(topic: TopicState, frozen: FrozenTopic) -> None:
    """`topic` is new and of the same spec."""
    topic.groups.thaw(frozen.store)
    topic.ledger.counts, topic.progress_at, topic.done_rows = frozen.counts, frozen.progress_at, frozen.done_rows
    topic.given, topic.late, topic.over = frozen.given, frozen.late, frozen.over
    topic.lost_attempts, topic.expired = frozen.lost_attempts, frozen.expired
    topic.prompts.thaw(frozen.prompts)
    topic.reissues.thaw(frozen.reissues, topic.groups)
    topic.receipts.thaw(frozen.receipts)
    topic.askers.thaw(frozen.askers)
    topic.queues.thaw(frozen.pickers)
    for number, terminal in topic.terminals.items():
        terminal.thaw(frozen.terminals[number])
    for number, rounds in topic.rounds.items():
        rounds.thaw(frozen.rounds[number])
    for number, replays in topic.replays.items():
        replays.thaw(frozen.replays[number])
    for table in (topic.groups.rows, topic.groups.groups):
        topic.runtime.blocks.hold(table.places[table.slots()])
    for old in frozen.attempts:
        attempt = Attempt(old.holder, old.fence, old.held_version, old.deadline, oldest=old.oldest)
        topic.hold(Group(topic.groups, old.slot), attempt, old.due)
    for lease, due in topic.leases.thaw(frozen.leases):
        leasing.watch(topic, lease, due)
