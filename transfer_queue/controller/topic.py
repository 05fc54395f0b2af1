"""One topic: its open groups and every step of their lives. What requests mean is decided in `sourcing`, `producing`, `consuming`, `committing`.

admitted → generating → complete → leased → trained | dropped(reason); a group that loses its producer goes back to admitted, one that loses its
trainer back to complete. A record exists while its group is open.
"""

from __future__ import annotations

from collections import defaultdict

from transfer_queue.controller.askers import Askers
from transfer_queue.controller.blocks import ids_of
from transfer_queue.controller.group import SERVED, Group, Row
from transfer_queue.controller.leases import Lease, Leases
from transfer_queue.controller.ledger import RUN_END, Ledger
from transfer_queue.controller.prompts import PromptQueue
from transfer_queue.controller.readiness import ReadySet
from transfer_queue.controller.reissue import ReissueQueue
from transfer_queue.controller.runtime import Runtime
from transfer_queue.controller.schema import Schema
from transfer_queue.controller.terminal import Terminal
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import RowPut, Slice, TopicSpec

STALE = "stale"


class TopicState:
    def __init__(self, spec: TopicSpec, runtime: Runtime, lease_s: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.runtime = runtime
        self.lease_s = lease_s
        self.schema = Schema(spec)
        self.window = WindowRules(spec.window)
        self.ledger = Ledger(spec.name, runtime)
        self.prompts = PromptQueue(spec.prompts_bound, runtime.blocks)
        self.groups: dict[int, Group] = {}  # open ones, in order of admission
        self.reissues = ReissueQueue()
        self.held: dict[str, set[int]] = defaultdict(set)  # producer "name#incarnation" -> gids
        self.leases = Leases(runtime.serial, runtime.now)
        self.askers = Askers(runtime.now)
        self.progress_at: dict[str, float] = {}  # by stage: its last work that was taken in, seconds of the controller's clock
        self.ready = [
            ReadySet(by_version=consumer.sampler == "oldest_first" or (consumer.terminal and self.window.ordered), gated=consumer.needs_weights)
            for consumer in spec.consumers
        ]
        self.terminals = {number: Terminal(number, spec.window.batch, self.ready[number]) for number in self.schema.terminals}
        self.clock_terminal = self.terminals[self.schema.terminals[0]]  # its commits are the model's clock
        self.done_rows = [0] * len(spec.consumers)
        self.stored_rows = 0
        self.late = 0  # rows, closes and write-backs that came too late
        self.over = False  # the target is trained

    @property
    def version(self) -> int:
        return self.clock_terminal.clock

    # ------------------------------------------------------------ admission and production

    def admit(self, owner: str, loaded: int) -> Group:
        """The next waiting prompt becomes a group record, which is the permit, and is handed out."""
        prompt, life = self.prompts.pop()
        min_version = self.window.min_version(self.version, self.ledger.open)
        group = Group(
            prompt.gid, life, prompt, prompt.rows or self.spec.rows_per_group, min_version, min_version, self.runtime.now(), [0] * len(self.ready)
        )
        self.groups[group.gid] = group
        for terminal in self.terminals.values():
            terminal.outside.add(group.version)
        self.ledger.admit(group, owner)
        self.hand_out(group, owner, loaded)
        self.runtime.wake("demand", self.name)
        self.runtime.wake("put", self.name)
        return group

    def hand_out(self, group: Group, owner: str, loaded: int) -> None:
        group.fence = self.runtime.serial()
        group.holder = owner
        group.held_version = loaded
        group.deadline = self.runtime.now() + self.lease_s
        self.held[owner].add(group.gid)

        def check() -> float | None:
            if self.runtime.now() < group.deadline:
                return group.deadline
            self.runtime.cancelled.append((owner, group.gid, group.fence))
            group.lapses += 1
            self.lose_producer(group, "lease_expired")
            return None

        group.timer = self.runtime.timers.at(group.deadline, check)

    def renew(self, group: Group) -> None:
        group.deadline = self.runtime.now() + self.lease_s
        self.progressed(self.schema.generator)

    def progressed(self, stage: str) -> None:
        """Work of this stage was taken in: neither it nor the run is stuck."""
        self.progress_at[stage] = self.runtime.now()
        self.runtime.touch()

    def start(self, group: Group) -> None:
        """The first token, or the first row."""
        if group.state == "admitted":
            self.ledger.move(group, "generating", self.version, member=group.holder or "")

    def add_row(self, group: Group, put: RowPut) -> None:
        row = Row(put.row, put.tokens, put.oldest_version, put.newest_version, {}, list(self.schema.missing))
        group.rows[put.row] = row
        self.stored_rows += 1
        for number, consumer in enumerate(self.schema.consumers):
            if consumer.unit == "group":
                group.pending[number] += 1
            if not row.missing[number]:
                self._row_ready(group, row, number)
        self.write(group, row, put.columns)

    def write(self, group: Group, row: Row, columns: dict[str, Slice]) -> None:
        """Commit columns of one row. The caller has checked that none of them is there."""
        new = ids_of(columns.values()) - group.blocks
        self.runtime.blocks.hold(new)
        group.blocks |= new
        for name, piece in columns.items():
            row.columns[name] = piece
            for number in self.schema.readers[name]:
                row.missing[number] -= 1
                if not row.missing[number]:
                    self._row_ready(group, row, number)

    def _row_ready(self, group: Group, row: Row, number: int) -> None:
        if self.schema.consumers[number].unit == "row":
            self.ready[number].add(group, row)
            self.wake_takers(number)
            return
        group.pending[number] -= 1
        self._group_ready(group, number)

    def _group_ready(self, group: Group, number: int) -> None:
        if group.closed and not group.pending[number]:
            self.ready[number].add(group, None)
            self.wake_takers(number)

    def close(self, group: Group, reason: str = "") -> None:
        """All rows are there: the group is complete and its producer is rid of it."""
        owner = self._unhold(group)
        group.closed = True
        group.attempt_oldest = None
        self.reversion(group)
        self.ledger.move(group, "complete", self.version, reason, owner)
        for number, consumer in enumerate(self.schema.consumers):
            if consumer.unit == "group":
                self._group_ready(group, number)

    def lose_producer(self, group: Group, reason: str) -> None:
        """The attempt is lost, its finished rows are kept; the rest is handed out again. Without a rest the group is complete."""
        owner = self._unhold(group)
        group.attempt_oldest = None
        group.attempt_tokens = 0
        if not group.missing_rows():
            self.close(group, reason)
            return
        self.reversion(group)
        self.ledger.move(group, "admitted", self.version, reason, owner)
        self.reissues.push(group)
        self.runtime.wake("pull", self.name)

    def _unhold(self, group: Group) -> str:
        owner = group.holder
        group.holder = None
        if group.timer is not None:  # it would keep the group, which may be trained by then, until the deadline
            self.runtime.timers.cancel(group.timer)
            group.timer = None
        if owner is None:
            return ""
        self.held[owner].discard(group.gid)
        if not self.held[owner]:
            del self.held[owner]
        return owner

    def reversion(self, group: Group) -> None:
        """Recompute the group's version after its tokens changed, and tell everything that is ordered by it."""
        version = group.measured_version()
        if version == group.version:
            return
        for terminal in self.terminals.values():
            terminal.reversion(group, version)
        group.version = version
        for ready in self.ready:
            ready.reorder(group)
        self.wake_terminals()

    # ------------------------------------------------------------ consumption

    def serve(self, number: int, group: Group, row: Row | None) -> None:
        """Consumer `number` acknowledged the row (None: the group): whoever else has it, or would get it, comes too late."""
        for part in [row] if row is not None else group.rows.values():
            part.missing[number] = SERVED
        self.ready[number].discard(group.gid, -1 if row is None else row.index)

    def lapse(self, lease: Lease) -> None:
        """A lease that ran out: its rows are ready again. Its owner may only be slow, so what it still writes first is taken in."""
        self.runtime.emit(
            "topic",
            topic=self.name,
            reason="lease_expired",
            member=lease.owner,
            data={"consumer": self.schema.consumers[lease.consumer].name, "rows": lease.rows()},
        )
        lease.timer = None
        self.release(lease, "lease_expired")
        self.leases.keep_lapsed(lease)

    def release(self, lease: Lease, reason: str) -> None:
        """A lease ends undone: what is still open of it is ready again."""
        if lease.timer is not None:
            self.runtime.timers.cancel(lease.timer)
        self.leases.remove(lease)
        terminal = self.terminals.get(lease.consumer)
        for group, row in lease.items:
            if not group.open:
                continue
            if terminal is None:
                if not group.served(lease.consumer, row):
                    self.ready[lease.consumer].add(group, row)
                continue
            terminal.put_back(group)
            group.leased_by.discard(lease.consumer)
            if not group.leased_by:
                self.ledger.move(group, "complete", self.version, reason, lease.owner)
        self.wake_takers(lease.consumer)

    def wake_takers(self, number: int) -> None:
        self.runtime.wake("take", self.name, self.schema.consumers[number].name)

    def wake_terminals(self) -> None:
        for number in self.terminals:
            self.wake_takers(number)

    # ------------------------------------------------------------ endings

    def drop(self, group: Group, reason: str) -> None:
        """Give a group up: counted under `reason`, cancelled at its holder, replaced unless the run is over."""
        if group.holder is not None:
            self.runtime.cancelled.append((group.holder, group.gid, group.fence))
        requeued = reason == STALE and self.window.spec.requeue
        if requeued:
            self.prompts.requeue(group.prompt, group.life + 1)
        self._end(group, keep_prompt=requeued)
        self.ledger.move(group, "dropped", self.version, reason, group.holder or "")
        self._unhold(group)

    def train(self, group: Group, clock: int, member: str) -> None:
        """Every terminal consumer acknowledged the group. `clock`: the version it was trained from."""
        self._end(group, keep_prompt=False)
        self.ledger.move(group, "trained", clock, member=member)

    def _end(self, group: Group, keep_prompt: bool) -> None:
        for number, consumer in enumerate(self.schema.consumers):
            for row in group.rows if consumer.unit == "row" else (-1,):
                self.ready[number].discard(group.gid, row)
        for terminal in self.terminals.values():
            terminal.forget(group)
        self.stored_rows -= len(group.rows)
        self.runtime.blocks.release(group.blocks)
        if not keep_prompt:
            self.runtime.blocks.release(ids_of(group.prompt.columns.values()))
        del self.groups[group.gid]
        for kind in ("pull", "demand", "put"):
            self.runtime.wake(kind, self.name)
        self.wake_terminals()

    def finish_if_trained(self) -> None:
        """At the target the run of this topic is over: what is left is dropped or discarded, and everybody waiting is told."""
        if self.over or self.prompts.target is None or self.ledger.trained < self.prompts.target:
            return
        self.over = True
        for group in list(self.groups.values()):
            self.drop(group, RUN_END)
        self.prompts.discard_all()
        self.runtime.emit("topic", topic=self.name, reason="done", version=self.version, data={"trained": self.ledger.trained})
        for number in range(len(self.ready)):
            self.wake_takers(number)

    def forget_owner(self, owner: str, cause: str) -> None:
        """A member ended: its attempts are reissued, its leases end."""
        for gid in sorted(self.held.get(owner, ())):
            self.lose_producer(self.groups[gid], f"producer_{cause}")
        for lease in self.leases.of(owner):
            self.release(lease, f"consumer_{cause}")
        self.leases.forget_lapsed(owner)
        self.askers.ended(owner)

    def take_back_lease(self, lease_id: int) -> None:
        """A hand-out that nobody received: its rows are ready again."""
        lease = self.leases.get(lease_id)
        if lease is not None:
            self.release(lease, "undelivered")

    def take_back_group(self, gid: int, fence: int) -> None:
        """An admission that nobody received: the group is handed out again."""
        group = self.groups.get(gid)
        if group is not None and group.holder is not None and group.fence == fence:
            self.lose_producer(group, "undelivered")

    def count_late(self, gid: int, member: str, what: str) -> None:
        """Something came after its group ended or its lease was lost: counted and logged, never an error."""
        self.late += 1
        self.runtime.emit("topic", topic=self.name, gid=gid, reason="late", member=member, data={"what": what})
