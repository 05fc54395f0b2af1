"""One topic: its open groups and the steps of their lives up to a lease; `leasing` has those of leases, `ending` the last ones. What requests mean is
decided in `sourcing`, `producing`, `consuming`, `committing`.

admitted → generating → complete → leased → trained | dropped(reason); a group that loses its producer goes back to admitted, one that loses its
trainer back to complete. A record exists while its group is open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from transfer_queue.controller.askers import Askers
from transfer_queue.controller.group import SERVED, Attempt, Group
from transfer_queue.controller.leases import Leases
from transfer_queue.controller.ledger import CODES, Ledger
from transfer_queue.controller.prompts import PromptQueue
from transfer_queue.controller.queues import Queues
from transfer_queue.controller.receipts import Receipts
from transfer_queue.controller.reissue import ReissueQueue
from transfer_queue.controller.replays import Replays
from transfer_queue.controller.rounds import Rounds, waits_for_its_rank
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.schema import Place, Schema
from transfer_queue.controller.store import Store, once
from transfer_queue.controller.tables import LEFT, NEVER
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.timers import Check, Due, Timer
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import NOWHERE, Slice, TopicSpec, packed_places, unpacked

Weights = tuple[int, int]  # (epoch, version): their order is that of the history


class TopicState:
    def __init__(self, spec: TopicSpec, runtime: Runtime, lease_s: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.runtime = runtime
        self.lease_s = lease_s
        self.schema = Schema(spec)
        self.window = WindowRules(spec.window, spec.window.budget_bytes - spec.admission_bytes)
        self.groups = Store(self.schema)  # open ones
        self.ledger = Ledger(spec.name, self.groups, runtime)
        self.prompts = PromptQueue(spec.prompts_bound, runtime.blocks)
        self.reissues = ReissueQueue()
        self.held: dict[str, set[int]] = defaultdict(set)  # producer "name#incarnation" -> gids
        self.leases = Leases(self.groups, runtime.serial, runtime.now)
        self.askers = Askers(runtime.now)
        self.progress_at: dict[str, float] = {}  # by stage: its last work that was taken in, seconds of the controller's clock
        self.queues = Queues(self.groups, self.window.ordered, self.wake_takers, self._fell_back, runtime.choice)
        self.terminals = {
            number: Terminal(number, spec.window.batch, self.queues.sets[number], self.queues.pickers[number], self.groups)
            for number in self.schema.terminals
        }
        self.rounds = {number: Rounds(number, plan, self.leases) for number, plan in enumerate(self.schema.plans) if plan.ranks}
        self.replays = {number: self._replays(terminal) for number, terminal in self.terminals.items() if self.schema.replays(number)}
        self.clock_terminal = self.terminals[self.schema.terminals[0]]  # its commits are the model's clock
        self.done_rows = [0] * len(spec.consumers)
        self.receipts = Receipts()  # of puts of whole groups
        self.given = 0  # groups that were put whole
        self.late = 0  # rows, closes and write-backs that came too late
        self.lost_attempts = 0  # groups that were handed out and came back undone
        self.expired = [0] * len(spec.consumers)  # leases that ran out
        self.over = False  # the target is trained
        self.on_return: Callable[[np.ndarray], object] = lambda slots: None  # hears of groups that a trainer gave back

    def _replays(self, terminal: Terminal) -> Replays:
        return Replays(terminal.number, self.schema, self.groups, self.runtime.blocks, lambda: self.window.oldest(terminal.clock))

    @property
    def version(self) -> int:
        return self.clock_terminal.clock

    @property
    def stored_rows(self) -> int:
        return self.groups.stored

    # ------------------------------------------------------------ admission and production

    def admit(self, owner: str, loaded: int) -> Group:
        """The next waiting prompt becomes a group record, which is the permit, and is handed out."""
        prompt, life = self.prompts.pop()
        min_version = self.window.min_version(self.version, self.ledger.open)
        places = unpacked(packed_places(prompt.columns.get(name) for name in self.schema.shared_names))
        gids, wanted = np.array([prompt.gid]), prompt.rows or self.spec.rows_per_group
        slots = self.groups.open(gids, life, wanted, min_version, places.reshape(1, -1, 4), self.runtime.now())
        group = Group(self.groups, int(slots[0]))
        for terminal in self.terminals.values():
            terminal.outside.add_all(np.array([min_version]))
        self.ledger.admit(slots, owner)
        self.hand_out(group, owner, loaded)
        self.runtime.wake("demand", self.name)
        self.runtime.wake("put", self.name)
        return group

    def hand_out(self, group: Group, owner: str, loaded: int) -> None:
        deadline = self.runtime.now() + self.lease_s
        self.hold(group, Attempt(owner, self.runtime.serial(), loaded, deadline), self.runtime.timers.due(deadline))

    def hold(self, group: Group, attempt: Attempt, due: Due | None) -> None:
        """Its holder is asked for progress at `due`; None: never."""
        self.groups.attempts[group.slot] = attempt
        self.held[attempt.holder].add(group.gid)
        attempt.timer = self.timer(partial(self._ask_producer, group, attempt), due)

    def timer(self, check: Check, due: Due | None) -> Timer | None:
        return None if due is None else self.runtime.timers.restore(check, due)

    def _ask_producer(self, group: Group, attempt: Attempt) -> float | None:
        """At the deadline of its lease."""
        if self.runtime.now() < attempt.deadline:
            return attempt.deadline
        self.runtime.cancelled.append((attempt.holder, group.gid, attempt.fence))
        self.groups.groups.lapses[group.slot] += 1
        self.lose_producer(group, "lease_expired")
        return None

    def renew(self, group: Group) -> None:
        if group.attempt is not None:
            group.attempt.deadline = self.runtime.now() + self.lease_s
        self.progressed(self.schema.generator)

    def progressed(self, stage: str) -> None:
        """Work of this stage was taken in: neither it nor the run is stuck."""
        self.progress_at[stage] = self.runtime.now()
        self.runtime.touch()

    def start(self, group: Group) -> None:
        """The first token, or the first row."""
        if group.state == "admitted":
            self.ledger.move(group, "generating", self.version, member=group.holder or "")

    def add_row(self, group: int, index: int, tokens: int, oldest: int, newest: int, columns: Mapping[str, Place]) -> None:
        """The same as `add_rows` of one row, without an operation on arrays: what streams in comes row by row. `columns`: a place each."""
        rows, groups = self.groups.rows, self.groups.groups
        slot = int(groups.base[group]) + index
        rows.there[slot], rows.group[slot], rows.index[slot], rows.tokens[slot] = True, group, index, tokens
        rows.oldest[slot], rows.newest[slot], rows.queued[slot] = oldest, newest, False
        self.groups.stored += 1
        groups.rows[group] += 1
        groups.tokens[group] += tokens
        groups.oldest[group], groups.newest[group] = min(oldest, groups.oldest[group]), max(newest, groups.newest[group])
        rows.places[slot] = NOWHERE
        for name, place in columns.items():
            rows.places[slot, self.schema.place_of[name]] = place
        there = {name: place for name, place in columns.items() if place[0] >= 0}
        self.runtime.blocks.hold_each((place[0], place[1]) for place in there.values())
        start = self.schema.start_of(frozenset(there))
        rows.missing[slot] = start.missing
        groups.pending[group] += start.pending
        for number in start.ready:
            self.queues.add_row(slot, number)

    def add_rows(self, groups: np.ndarray, numbers: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """New rows of these groups (slots, [R], those of a group adjacent); returns their slots. `numbers`: index, tokens, oldest, newest, [R] each.
        `columns`: places, [R, 4] each. The caller has checked that none of the rows is there."""
        store, count = self.groups, len(groups)
        slots = store.groups.base[groups] + numbers["index"]
        store.stored += count
        store.rows.there[slots] = True
        places = np.empty((count, len(self.schema.per_row_names), 4), dtype=np.int64)
        places[:] = NOWHERE
        for name, table in columns.items():
            places[:, self.schema.place_of[name]] = table
        store.rows.group[slots], store.rows.places[slots], store.rows.queued[slots] = groups, places, False
        for name in ("index", "tokens", "oldest", "newest"):
            getattr(store.rows, name)[slots] = numbers[name]
        np.add.at(store.groups.rows, groups, 1)
        np.minimum.at(store.groups.oldest, groups, numbers["oldest"])
        np.maximum.at(store.groups.newest, groups, numbers["newest"])
        np.add.at(store.groups.tokens, groups, numbers["tokens"])
        self.runtime.blocks.hold(places)
        missing = self.schema.missing - (places[:, :, 0] >= 0) @ self.schema.needs
        store.rows.missing[slots] = missing
        for number, consumer in enumerate(self.schema.consumers):
            if consumer.unit == "group":
                np.add.at(store.groups.pending[:, number], groups, missing[:, number] > 0)
            else:
                self.queues.add_rows(slots[missing[:, number] == 0], number)
        return slots

    def write(self, slots: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Commit columns (places, [R, 4] each) of rows (slots). The caller has checked that none of them is there."""
        table = self.groups.rows
        for name, places in columns.items():
            self.runtime.blocks.hold(places)
            table.places[slots, self.schema.place_of[name]] = places
            found = slots if (there := places[:, 0] >= 0).all() else slots[there]
            for number in self.schema.readers[name]:
                left = np.maximum(table.missing[found, number] - 1, SERVED)  # who was served stays so when a column that was lost is written again
                table.missing[found, number] = left
                complete = found if not left.any() else found[left == 0]
                if self.schema.consumers[number].unit == "row":
                    self.queues.add_rows(complete, number)
                elif len(complete):
                    groups, counts = once(table.group[complete])
                    self.groups.groups.pending[groups, number] -= counts
                    self.queues.add_groups(groups, number)

    def close(self, group: Group, reason: str = "") -> None:
        """All rows are there: the group is complete and its producer is rid of it."""
        owner = self.unhold(group)
        slots = np.array([group.slot])
        self.groups.groups.closed[slots] = True
        self.drop_left(group)
        self.reversion(group)
        self.ledger.move(group, "complete", self.version, reason, owner)
        self.queues.closed(slots)

    def lose_producer(self, group: Group, reason: str) -> None:
        """The attempt is lost."""
        self.lost_attempts += self.end_attempt(group, reason)

    def end_attempt(self, group: Group, reason: str) -> bool:
        """Finished rows are kept, and what was handed back; the rest is handed out again, if there is a rest. Without one the group is complete."""
        owner = self.unhold(group)
        self.groups.groups.attempt_tokens[group.slot] = 0
        if not group.missing_rows():
            self.close(group, reason)
            return False
        self.reversion(group)
        self.ledger.move(group, "admitted", self.version, reason, owner)
        self.reissues.push(group)
        self.runtime.wake("pull", self.name)
        return True

    def keep_left(self, group: Group, piece: Slice, oldest: int, newest: int, epoch: int) -> None:
        """Another attempt can go on from these tokens, in place of what an earlier one left. `epoch`: of the newest."""
        table = self.groups.groups
        self.runtime.blocks.hold_each([(piece.shard, piece.block)])
        self.drop_left(group)
        table.places[group.slot, LEFT] = (piece.shard, piece.block, piece.start, piece.stop)
        table.left_oldest[group.slot], table.left_newest[group.slot], table.left_epoch[group.slot] = oldest, newest, epoch

    def drop_left(self, group: Group) -> None:
        table = self.groups.groups
        if table.left_oldest[group.slot] == NEVER:
            return
        self.runtime.blocks.release(table.places[[group.slot], LEFT])
        table.places[group.slot, LEFT] = NOWHERE
        table.left_oldest[group.slot], table.left_newest[group.slot], table.left_epoch[group.slot] = NEVER, 0, 0

    def asked_weights(self, group: Group, version: int) -> Weights:
        """Of an attempt that needs this version at least: with tokens to go on from, the weights of the newest."""
        epoch = self.clock_terminal.epoch_of(version)
        return (epoch if group.left is None else max(epoch, int(self.groups.groups.left_epoch[group.slot])), version)

    def restart_version(self, group: Group) -> int:
        """Of the weights that another attempt needs, at least. With tokens to go on from the group's version is fixed and nothing newer has overtaken
        it, so these need no older weights than their newest, and no other."""
        if group.left is not None:
            return group.asked_version
        return self.window.restart_version(self.version, self.ledger.open, group.min_version)

    def unhold(self, group: Group) -> str:
        attempt = self.groups.attempts.pop(group.slot, None)
        if attempt is None:
            return ""
        if attempt.timer is not None:  # it would keep the attempt, whose group may be trained by then, until the deadline
            self.runtime.timers.cancel(attempt.timer)
        self.held[attempt.holder].discard(group.gid)
        if not self.held[attempt.holder]:
            del self.held[attempt.holder]
        return attempt.holder

    def reversion(self, group: Group) -> None:
        """Recompute the group's version after its tokens changed, and tell everything that is ordered by it."""
        version = group.measured_version()
        if version == group.version:
            return
        slots = np.array([group.slot])
        for terminal in self.terminals.values():
            terminal.reversion(slots, np.array([version]))
        self.queues.reversion(slots, version)
        self.wake_terminals()

    # ------------------------------------------------------------ consumption

    def pop_batch(self, terminal: Terminal, limit: int, at_least: int, loaded: int | None) -> np.ndarray:
        """Groups (slots) for the batch of a terminal consumer, in its sampler's order."""
        order = terminal.picker.plan.order
        if order == "same_version":
            left = terminal.batch_size(self.prompts.target) - len(terminal.batch)
            slots = terminal.select_alike(limit, at_least, left, loaded, self._more_for(terminal, loaded))
        else:
            slots = terminal.select(limit, at_least, loaded, self.window.ordered)
        self.queues.rows[terminal.number] -= int(self.groups.groups.rows[slots].sum())
        if order == "in_order":
            slots = slots[np.argsort(self.groups.groups.gid[slots])]
        return slots

    def lease_batch(self, groups: np.ndarray, member: str) -> None:
        """These groups (slots) are in a batch now."""
        self.ledger.move_all(groups[self.groups.groups.state[groups] != CODES["leased"]], "leased", self.version, member=member)

    def _more_for(self, terminal: Terminal, loaded: int | None) -> bool:
        """Whether groups may yet come or get ready for it, without a commit before."""
        if len(terminal.outside) > terminal.ready.count(loaded):
            return True
        target, taken = self.prompts.target, self.ledger.trained + self.ledger.open
        return self.window.has_permit(self.ledger.open) and (target is None or taken < target)

    def _fell_back(self, number: int, fault: str, times: int) -> None:
        """A sampler could not be followed: the take was served all the same."""
        consumer = self.schema.consumers[number]
        data: dict[str, float | int | str] = {"consumer": consumer.name, "sampler": consumer.sampling.name, "why": fault, "times": times}
        self.runtime.emit("topic", topic=self.name, reason="sampler_fell_back", data=data)

    def wake_takers(self, number: int) -> None:
        self.runtime.wake("take", self.name, self.schema.consumers[number].name)

    def wake_terminals(self) -> None:
        for number in self.terminals:
            self.wake_takers(number)

    def under_way(self) -> bool:
        """Whether somebody has something that can be finished without more being handed out."""
        untaken = [lease for lease in self.leases if waits_for_its_rank(lease) and lease.count()]
        waiting = {lease.consumer for lease in untaken}
        batches = [terminal for number, terminal in self.terminals.items() if terminal.batch and number not in waiting]
        whole = any(len(terminal.batch) == terminal.batch_size(self.prompts.target) for terminal in batches)
        held = (lease for lease in self.leases if lease.consumer not in self.terminals and not waits_for_its_rank(lease))
        return whole or bool(self.groups.attempts) or any(lease.count() for lease in held)

    def take_back_group(self, gid: int, fence: int) -> None:
        """An admission that nobody received: the group is handed out again."""
        group = self.groups.get(gid)
        if group is not None and group.holder is not None and group.fence == fence:
            self.lose_producer(group, "undelivered")

    def count_late(self, gid: int, member: str, what: str) -> None:
        """Something came after its group ended or its lease was lost: counted and logged, never an error."""
        self.late += 1
        self.runtime.emit("topic", topic=self.name, gid=gid, reason="late", member=member, data={"what": what})
