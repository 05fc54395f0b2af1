"""What a terminal consumer asks: commit. One idempotent record: groups trained, version + 1, permits back, expiry."""

from __future__ import annotations

import numpy as np

from transfer_queue.controller import ending, leasing
from transfer_queue.controller.errors import bad
from transfer_queue.controller.replaying import count_replayed
from transfer_queue.controller.store import gids_of
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.topic import TopicState
from transfer_queue.messages import Commit, OkCommitted


def commit(topic: TopicState, request: Commit, owner: str) -> OkCommitted:
    """Nothing changes unless the leases are exactly the batch of this step. A repeat gets the same version again."""
    number = topic.schema.consumer(request.consumer)
    terminal = topic.terminals.get(number)
    if terminal is None:
        raise bad(f"consumer={request.consumer!r} is not terminal: it acknowledges by WriteBack; nothing was committed")
    if terminal is topic.clock_terminal and request.model != topic.spec.model:
        raise bad(
            f"model={request.model!r}: the commits of {request.consumer!r} are the clock of {topic.spec.model!r} in topic {topic.name!r}; "
            "nothing was committed"
        )
    if request.step < terminal.clock:
        return _repeat(topic, terminal, request)
    _check_epoch(terminal, request)
    _check_batch(topic, terminal, request)
    clock = topic.version
    for lease_id in request.leases:
        lease = topic.leases.get(lease_id)
        if lease is not None:
            leasing.end(topic, lease)
    if number in topic.rounds:
        topic.rounds[number].clear()  # of a whole batch nothing is left but parts whose groups ended
    trained = terminal.commit(request.epoch)
    replayed = count_replayed(topic, terminal, request.leases, request.step, owner)
    topic.done_rows[number] += int(topic.groups.groups.rows[trained].sum())
    _acknowledged(topic, trained, clock, owner)
    facts: dict[str, float | int | str] = {"consumer": request.consumer, "model": request.model, "epoch": request.epoch, "step": request.step}
    facts |= {"groups": len(trained), "trained": topic.ledger.trained, **replayed}
    topic.runtime.emit("commit", topic=topic.name, version=terminal.clock, member=owner, data={**request.info, **facts})
    topic.progressed(request.consumer)
    if terminal is topic.clock_terminal:
        _advance(topic)
    ending.finish_if_trained(topic)
    topic.wake_terminals()
    return OkCommitted(version=request.step + 1, trained=topic.ledger.trained, done=topic.over)


def _repeat(topic: TopicState, terminal: Terminal, request: Commit) -> OkCommitted:
    if request.step < 0 or terminal.epochs[request.step] != request.epoch:
        raise bad(
            f"step={request.step} was committed in another epoch than {request.epoch}, the clock of {request.consumer!r} is {terminal.clock}: "
            "this history was rolled back; nothing was committed. Restart from the newest checkpoint"
        )
    return OkCommitted(version=request.step + 1, trained=topic.ledger.trained, done=topic.over)


def _check_epoch(terminal: Terminal, request: Commit) -> None:
    if request.step > terminal.clock:
        raise bad(
            f"step={request.step} is ahead of the clock {terminal.clock} of {request.consumer!r}: steps are committed one by one; nothing was "
            "committed"
        )
    if terminal.epochs and request.epoch < terminal.epochs[-1]:
        raise bad(
            f"epoch={request.epoch} is older than {terminal.epochs[-1]}, in which {request.consumer!r} committed last: a recovered trainer "
            "took over; nothing was committed. End this one"
        )


def _check_batch(topic: TopicState, terminal: Terminal, request: Commit) -> None:
    leases = [topic.leases.get(lease_id) for lease_id in request.leases]
    gids: set[int] = set()
    for lease_id, lease in zip(request.leases, leases, strict=True):
        if lease is None or lease.consumer != terminal.number:
            raise bad(
                f"lease {lease_id} is not a current lease of {request.consumer!r}: its groups may be another trainer's by now; nothing was "
                f"committed. Take the batch of step {terminal.clock} again"
            )
        gids |= set(gids_of(lease.keys[lease.alive()]).tolist())
    size = terminal.batch_size(topic.prompts.target)
    if gids != terminal.batch.keys() or len(gids) != size or not gids:
        raise bad(
            f"leases {request.leases[:8]} hold {len(gids)} groups, the batch of step {request.step} has {size}, of which "
            f"{len(terminal.batch)} are leased: a version is one whole batch; nothing was committed. Take the rest, and name every lease of "
            "the step"
        )


def _acknowledged(topic: TopicState, slots: np.ndarray, clock: int, owner: str) -> None:
    table = topic.groups.groups
    done = np.count_nonzero(table.acked[slots], axis=1) == len(topic.terminals)
    waiting = slots[~done & ~table.leased[slots].any(axis=1)]
    if len(waiting):
        topic.ledger.move_all(waiting, "complete", clock, "acknowledged", owner)
    if done.any():
        ending.train(topic, slots[done], clock, owner)


def _advance(topic: TopicState) -> None:
    """The clock went on: min_versions move, and under `drop` what is too old goes."""
    if topic.window.expires:
        ending.drop(topic, _stale(topic), ending.STALE)
    topic.runtime.wake("pull", topic.name)


def _stale(topic: TopicState) -> np.ndarray:
    """Slots of groups that are started, untouched by any trainer, and too old. The window bounds how many groups are looked at."""
    store, slots = topic.groups, topic.groups.all()
    started = store.started_versions(slots)
    stale = (started < topic.version - (topic.window.staleness or 0)) & ~(store.groups.leased[slots] | store.groups.acked[slots]).any(axis=1)
    found: np.ndarray = slots[stale]
    return found
