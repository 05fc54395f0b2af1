"""Takes of data-parallel ranks: each gets its part of what is chosen once for all of them."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller import leasing
from transfer_queue.controller.errors import bad
from transfer_queue.controller.replaying import replayed_with
from transfer_queue.controller.rounds import Rounds
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import OkTaken, Replayed, Take


def check_rank(request: Take, ranks: int) -> None:
    """`ranks`: of the consumer; 0: it has none."""
    if (request.rank is None and not ranks) or (request.rank is not None and 0 <= request.rank < ranks):
        return
    has = f"deals to ranks 0 to {ranks - 1}" if ranks else "deals to no ranks"
    raise bad(
        f"rank={request.rank} of consumer {request.consumer!r}, whose sampler {has}: nothing was leased, for it would be another rank's part or "
        "nobody's; take with the rank where, and only where, the sampler is rank_aware or length_balanced"
    )


def deal(topic: TopicState, rounds: Rounds, request: Take, loaded: int | None, last: bool) -> None:
    """A new round of a consumer that is not terminal, if there is enough for every rank; at the deadline of what there is."""
    number, ranks = rounds.number, rounds.ranks
    limit, at_least = ranks * request.limit, ranks * min(request.at_least, request.limit)
    available = topic.queues.pickers[number].most(loaded)
    if not available or (available < at_least and not last):
        return
    limit = _even(min(limit, available), ranks)
    items = topic.queues.pop(number, limit, loaded, min(at_least, limit))
    more = items[_even(len(items), ranks) :]
    if len(more):
        (topic.queues.add_groups if topic.schema.consumers[number].unit == "group" else topic.queues.add_rows)(more, number)
        items = items[: -len(more)]
    _deal_out(topic, rounds, items)


def deal_batch(topic: TopicState, terminal: Terminal, rounds: Rounds, request: Take, owner: str, loaded: int | None, left: int) -> None:
    """A new round of a terminal consumer, of up to `left` groups of its batch."""
    limit = _even(min(rounds.ranks * request.limit, left), rounds.ranks)
    at_least = min(rounds.ranks * request.at_least, limit)
    groups = topic.pop_batch(terminal, limit, at_least, loaded)
    if len(groups):
        topic.lease_batch(groups, owner)
        _deal_out(topic, rounds, groups)


def take_part(topic: TopicState, rounds: Rounds, request: Take, owner: str, loaded: int | None) -> OkTaken | None:
    """The part that waits for this rank; None: none does."""
    rank, terminal = request.rank or 0, topic.terminals.get(rounds.number)
    gated = topic.schema.consumers[rounds.number].needs_weights
    if not rounds.waits(rank) or (gated and loaded is not None and not rounds.fits(rank, loaded)):
        return None
    full = not rounds.may_deal()
    number, lease = rounds.hand_out(rank, owner)
    if full:
        topic.wake_takers(rounds.number)  # a rank that was too far ahead
    clock = topic.version if terminal is None else terminal.clock
    batch = 0 if terminal is None else terminal.batch_size(topic.prompts.target)
    if lease is None:
        return OkTaken(version=clock, batch=batch, round=number)
    if terminal is None:
        leasing.arm(topic, lease)
    replayed = Replayed() if terminal is None else replayed_with(topic, terminal, lease, batch)
    return OkTaken(lease=lease.id, rows=leasing.rows_of_lease(topic, lease), version=clock, batch=batch, replayed=replayed, round=number)


def _deal_out(topic: TopicState, rounds: Rounds, items: np.ndarray) -> None:
    parts = rounds.cut(topic.queues.tokens_of(rounds.number, items))
    rounds.deal([topic.queues.rows_of(rounds.number, items[part]) for part in parts])
    topic.wake_takers(rounds.number)


def _even(count: int, ranks: int) -> int:
    """As many for every rank; where there is not one for each, what there is."""
    return count // ranks * ranks if count >= ranks else count
