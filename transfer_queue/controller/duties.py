"""Duties: work that is due at some versions and given to one member by its directive (design decision 9), evaluation above all.

A duty is due when a published version reaches or passes a multiple of `every` (version 0 included), and once for the final version. It is given to
one alive member of the role that computes with at least that version. At most one is due at a time: a newer one takes the place of an older one that
nobody has begun.

The first one is done with the version that the run starts from, whoever dies meanwhile: before it is given nobody of the role gets a prompt, and
until it is done no batch of its model is handed to the trainer, so that no newer version can take the place of the one to be evaluated. The other
members generate meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transfer_queue.controller.desired import Desired
from transfer_queue.controller.members import Member, Members
from transfer_queue.controller.runtime import Runtime
from transfer_queue.messages import Record


class Duty(Record, frozen=True):
    name: str  # what the directive says, e.g. "evaluate"
    role: str  # who can do it, e.g. "rollout"
    model: str  # whose versions it follows, e.g. "policy"
    every: int  # versions; 0: only the final one


@dataclass(slots=True, eq=False)
class _State:
    duty: Duty
    due: int | None = None  # a version that waits for somebody to do it
    marked: Member | None = None
    marked_due: int = -1
    marked_loaded: int = -1  # what the marked member computes with, and keeps until it is done
    begun: bool = False  # somebody was marked once
    done: bool = False  # and finished once
    seen: int = -1  # newest version published
    covered: int = -1  # newest version it was done with
    final: int | None = None


class FrozenDuty(Record, frozen=True):
    """What a snapshot keeps."""

    state: _State
    marked: str | None  # the member's name


class Duties:
    def __init__(self, duties: list[Duty], runtime: Runtime, members: Members, desired: Desired) -> None:
        self._states = [_State(duty) for duty in duties]
        self._runtime = runtime
        self._members = members
        self._desired = desired

    def freeze(self) -> list[FrozenDuty]:
        return [FrozenDuty(replace(state, marked=None), None if state.marked is None else state.marked.name) for state in self._states]

    def thaw(self, frozen: list[FrozenDuty]) -> None:
        """After the members."""
        self._states = [old.state for old in frozen]
        for old in frozen:
            old.state.marked = None if old.marked is None else self._members.find(old.marked)

    def load(self, frozen: list[FrozenDuty]) -> None:
        """Of another run, whose members are not ours: what one of them was at is due again."""
        found = {old.state.duty: old for old in frozen}
        for state in self._states:
            old = found.get(state.duty)
            if old is None:
                continue
            due = -1 if old.state.due is None else old.state.due
            again = max(due, old.state.marked_due) if old.marked is not None else due
            state.due = None if again < 0 else again
            state.begun, state.done = old.state.begun, old.state.done
            state.seen, state.covered, state.final = old.state.seen, old.state.covered, old.state.final

    def published(self, model: str, version: int) -> None:
        for state in self._states:
            every = state.duty.every
            if state.duty.model != model or version <= state.seen:
                continue
            if every > 0 and version // every > state.seen // every:
                state.due = version
            state.seen = version

    def final(self, model: str, version: int) -> None:
        """The last version is published: the duty is due for it unless it was done with it, or is being done."""
        for state in self._states:
            if state.duty.model == model and state.final is None:
                state.final = version
                if state.covered < version and (state.marked is None or state.marked_loaded < version):
                    state.due = version

    def finished(self) -> bool:
        return all(state.final is not None and state.covered >= state.final for state in self._states)

    def holds_back(self, member: Member) -> bool:
        """The member gets no prompt now: it has a duty, or the first duty of its role was not given yet."""
        first_waits = any(not state.begun and state.duty.every > 0 and state.duty.role == member.role for state in self._states)
        return member.duty is not None or first_waits

    def holds_back_batches(self, model: str) -> bool:
        """The first duty that follows this model is not done: a commit now would end the version that it is due for."""
        return any(not state.done and state.duty.every > 0 and state.duty.model == model for state in self._states)

    def assign(self) -> None:
        """Mark a member for each duty that is due and not being done."""
        for state in self._states:
            if state.due is None or state.marked is not None:
                continue
            member = next((member for member in self._members if _can(member, state)), None)
            if member is not None:
                self._mark(state, member)

    def _mark(self, state: _State, member: Member) -> None:
        assert state.due is not None
        state.marked, state.marked_due, state.due, state.begun = member, state.due, None, True
        state.marked_loaded = member.loaded[state.duty.model]
        member.duty, member.duty_since = state.duty.name, self._runtime.now()
        self._desired.changed_for(member)
        self._runtime.touch()
        self._runtime.emit("member", reason=f"duty:{state.duty.name}", member=member.owner, version=state.marked_loaded)
        self._runtime.wake("pull")

    def done(self, member: Member, name: str) -> None:
        """The marked member says so; anything else is a repeat and ignored."""
        for state in self._states:
            if state.marked is member and state.duty.name == name:
                state.covered, state.done = max(state.covered, state.marked_loaded), True
                self._unmark(state, member)
                self._runtime.wake("all")  # batches that were held back, too
                self._runtime.emit("member", reason=f"duty_done:{name}", member=member.owner, version=state.marked_loaded)

    def lost(self, member: Member) -> None:
        """The member ended: what it was to do is due again."""
        for state in self._states:
            if state.marked is member:
                state.due = max(state.marked_due, -1 if state.due is None else state.due)
                self._unmark(state, member)

    def _unmark(self, state: _State, member: Member) -> None:
        state.marked = None
        member.duty = None
        self._desired.changed_for(member)
        self._runtime.touch()
        self._runtime.wake("pull")

    def marked(self) -> list[Member]:
        return [state.marked for state in self._states if state.marked is not None]


def _can(member: Member, state: _State) -> bool:
    assert state.due is not None
    return member.role == state.duty.role and member.duty is None and member.loaded.get(state.duty.model, -1) >= state.due
