"""The controller's observer: every event into `events.jsonl`, every commit into `metrics.jsonl`, every worker's recording into `timeline.jsonl`.

It lives in the controller's process and is called by it, so it is cheap: an encoded line is kept in memory, a thread brings it to disk.

A controller that comes back out of its journal tells everything since its last snapshot again, so the recorder writes down how far it was at each
(`kept`). The lines behind that it finds in the files; what the journal does not hold never happened, and its lines give way.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from asyncflow.observe.again import Again, Mark
from asyncflow.observe.log import LineLog, RecordLost
from asyncflow.observe.records import EVENTS, METRICS, StageDepth, StepRecord
from asyncflow.observe.shares import Shares, SharesMemory
from asyncflow.observe.timeline import TimelineLog, TimelineMemory
from transfer_queue.controller.moves import Moves
from transfer_queue.messages import Event, TopicStatus

BAD_TRACE = "bad_trace"  # reason of the event that names a worker whose recording could not be read


class Standing(msgspec.Struct, frozen=True):
    """What the recorder looks at in the controller at a commit."""

    topic: TopicStatus
    roles: dict[str, str]  # "name#incarnation" → role
    clocks: dict[str, Mapping[str, float]]  # the same → cumulative seconds by activity, as of its last heartbeat


def writable(event: Event) -> Event:
    """JSON has no NaN and no infinity, and `null` would say "not measured": such a number becomes a word ("nan", "inf"), which float() reads."""
    words = {name: str(value) for name, value in event.data.items() if isinstance(value, float) and not math.isfinite(value)}
    return msgspec.structs.replace(event, data={**event.data, **words}) if words else event


class Memory(msgspec.Struct, frozen=True):
    """How far the record was when the controller's last snapshot was made."""

    calls: int = 0  # of the observer, from the beginning of the run on
    events: Mark = Mark()
    metrics: Mark = Mark()
    timeline: TimelineMemory = TimelineMemory()
    shares: SharesMemory = SharesMemory()
    last_commit_s: float = 0.0


def same_commit(found: bytes, told: bytes) -> bool:
    """Whether two lines of metrics.jsonl are of one commit. What was written when it happened knows more of the workers' costs."""
    try:
        first, second = (msgspec.json.decode(line, type=StepRecord) for line in (found, told))
    except msgspec.DecodeError:
        return False
    return (first.version, first.events, first.t_s) == (second.version, second.events, second.t_s)


def is_bad_trace(line: bytes) -> bool:
    """An event of ours, and not of the controller, which does not tell it again."""
    return f'"reason":"{BAD_TRACE}"'.encode() in line


class Recorder:
    """Writes the logs of one run."""

    def __init__(self, run_dir: Path, devices: int, memory: Path | None = None) -> None:
        """`devices`: over how many the per-device rate is taken. `standing` must be set before the first commit. `memory`: file that outlives this
        process, where the controller has a journal."""
        self._devices, self._memory = devices, memory
        self.standing: Callable[[str], Standing] | None = None  # topic → what to record of it, asked at each commit
        before = msgspec.json.decode(memory.read_bytes(), type=Memory) if memory is not None and memory.exists() else Memory()
        self._events = LineLog(run_dir / EVENTS, Again(run_dir / EVENTS, before.events, alone=is_bad_trace))
        self._metrics = LineLog(run_dir / METRICS, Again(run_dir / METRICS, before.metrics, same_commit))
        self._timeline = TimelineLog(run_dir, before.timeline)
        self._shares = Shares(before.shares)
        self._calls, self._last_commit_s = before.calls, before.last_commit_s
        self._looks: deque[Standing] = deque()  # of commits that are told when they are in the journal

    def look(self, event: Event) -> None:
        """An event that is told later happens now (`transfer_queue.journal.observing.Later`)."""
        if event.kind == "commit":
            self._looks.append(self._standing(event.topic))

    def on_event(self, event: Event) -> None:
        """Called by the controller, synchronously."""
        self._calls += 1
        self._write(event)

    def on_moves(self, moves: Moves, t_s: float) -> None:
        """The same for many groups at once."""
        self._calls += 1
        for event in moves.events(t_s):
            self._write(event)

    def kept(self) -> int:
        """`transfer_queue.journal.observing.Keeping`: how many calls are on the disk and come no more."""
        if self._memory is not None:
            for log in (self._events, self._metrics, self._timeline):
                log.flush()
            marks = self._events.mark, self._metrics.mark
            memory = Memory(self._calls, *marks, self._timeline.memory, self._shares.memory, self._last_commit_s)
            draft = self._memory.with_suffix(".tmp")
            draft.write_bytes(msgspec.json.encode(memory))
            os.replace(draft, self._memory)
        return self._calls

    def rewind(self, calls: int) -> None:
        """Part of `Keeping`. Here no run outlives its machine's power, and nothing else undoes what a journal held."""
        raise RecordLost(f"{calls} calls are in the journal and {self._calls} in {self._memory}: the record tells of what never happened")

    def _standing(self, topic: str) -> Standing:
        assert self.standing is not None  # the controller's process sets it before the first request
        return self.standing(topic)

    def _write(self, event: Event) -> None:
        event = writable(event)
        self._events.append(event)
        if event.kind == "commit":
            self._metrics.append(self._step(event))

    def on_trace(self, member: str, role: str, trace: bytes, t_s: float) -> None:
        """What a worker's heartbeat carried. One that cannot be read is counted, and the first of a worker is told in the event log."""
        problem = self._timeline.add(member, role, trace, t_s)
        if problem is not None and self._timeline.refused[member] == 1:
            self._write(Event(t_s=t_s, kind="report", reason=BAD_TRACE, member=member, data={"problem": problem}))

    def _step(self, event: Event) -> StepRecord:
        standing = self._looks.popleft() if self._looks else self._standing(event.topic)
        topic = standing.topic
        self._timeline.forget(standing.roles)
        info = {key: float(value) for key, value in event.data.items() if isinstance(value, int | float)}
        seconds = event.t_s - self._last_commit_s
        self._last_commit_s = event.t_s
        rate = info["tokens"] / seconds if seconds > 0 and "tokens" in info else None
        return StepRecord(
            version=event.version,
            t_s=event.t_s,
            events=self._events.mark.lines,
            reward_mean=info.get("reward_mean"),
            staleness_mean=info.get("staleness_mean"),
            staleness_p95=info.get("staleness_p95"),
            staleness_max=info.get("staleness_max"),
            permits=topic.permits if topic.capacity is not None else -1,
            open_groups=topic.open,
            ledger={state: count for state, count in topic.ledger.items() if count},
            prompts_waiting=topic.prompts_waiting,
            queue_rows=topic.stored_rows,
            queue_bytes=topic.reserved_bytes,
            shares=self._shares.update(standing.roles, standing.clocks),
            tokens_per_s=rate,
            tokens_per_s_device=rate / self._devices if rate is not None else None,
            info=info,
            stages={entry.name: StageDepth(entry.ready_rows, entry.leased_rows, entry.done_rows) for entry in topic.consumers},
            costs=self._timeline.costs,
        )

    def close(self) -> None:
        """Everything is on disk afterwards."""
        self._events.close()
        self._metrics.close()
        self._timeline.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
