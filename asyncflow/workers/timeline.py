"""What a worker's threads did since the last heartbeat: spans of time with an activity and a phase, exact where few, joined where many.

Recording costs the recording thread an append; memory is bounded whatever the worker does and however late a heartbeat is.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from asyncflow.workers.phase import THREADS, Activity, Phase, Thread

JOIN_S = 0.002  # two spans of the same activity and phase with a shorter wait between them count as one
MOST_SPANS = 256  # of a thread in one heartbeat
MOST_LENGTHS = 2048  # of finished responses in one heartbeat

Doing = tuple[Activity, Phase]


class Stretch(msgspec.Struct, gc=False):
    """[start_s, end_s] on the worker's own clock."""

    activity: Literal["busy", "paused"]
    what: Phase
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Track:
    """One thread: exactly one (activity, phase) at any moment, so that the totals by activity sum to the time since the start. Not locked."""

    def __init__(self, now_s: float) -> None:
        self.activity: Activity = "wait"
        self.what: Phase = "idle"
        self.totals: dict[Activity, float] = {"busy": 0.0, "wait": 0.0, "paused": 0.0}
        self.stretches: list[Stretch] = []
        self._since_s = now_s

    def cut(self, now_s: float) -> None:
        """Account for the time up to now; what goes on goes on."""
        start_s, self._since_s = self._since_s, now_s
        self.totals[self.activity] += now_s - start_s
        if self.activity == "wait" or now_s <= start_s:
            return
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.activity == self.activity and last.what == self.what and start_s - last.end_s < JOIN_S:
            last.end_s = now_s
            return
        self.stretches.append(Stretch(self.activity, self.what, start_s, now_s))
        if len(self.stretches) >= 2 * MOST_SPANS:  # every so many appends, so that one append costs O(log n)
            self.stretches = coarser(self.stretches, MOST_SPANS)

    def seconds(self, now_s: float) -> dict[str, float]:
        """Since the start, by activity."""
        open_s = now_s - self._since_s
        return {activity: seconds + (open_s if activity == self.activity else 0.0) for activity, seconds in self.totals.items()}

    def take(self) -> list[Stretch]:
        """At most MOST_SPANS, in order; they are forgotten here."""
        taken, self.stretches = self.stretches, []
        return coarser(taken, MOST_SPANS)


class Timeline:
    """All threads of one worker, under one lock and one clock, so that they are cut at the same moment."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._start_s = self._taken_s = now()
        self._tracks = {thread: Track(self._start_s) for thread in THREADS}
        self._lengths: list[int] = []
        self._stride, self._skip = 1, 0

    def switch(self, thread: Thread, activity: Activity, what: Phase) -> Doing:
        """From now on this thread does that. Returns what it did until now."""
        track = self._tracks[thread]
        with self._lock:
            track.cut(self._now())
            left = track.activity, track.what
            track.activity, track.what = activity, what
        return left

    def totals(self) -> dict[str, float]:
        """Seconds of the main thread since the start, by activity."""
        with self._lock:
            return self._tracks["main"].seconds(self._now())

    def finished(self, lengths: list[int]) -> None:
        """Responses of so many tokens are in the queue. Past MOST_LENGTHS a heartbeat carries every second one, then every fourth, …"""
        with self._lock:
            for length in lengths:
                self._skip = (self._skip + 1) % self._stride
                if self._skip == 0:
                    self._lengths.append(length)
                if len(self._lengths) > MOST_LENGTHS:
                    self._lengths, self._stride = self._lengths[::2], 2 * self._stride

    def age_s(self) -> float:
        """Since `take`, or since the start."""
        return self._now() - self._taken_s

    def take(self) -> Taken:
        """What was recorded since the call before, up to this moment. What is open is cut here and goes on in the next one."""
        with self._lock:
            now_s = self._now()
            for track in self._tracks.values():
                track.cut(now_s)
            stretches = {thread: track.take() for thread, track in self._tracks.items()}
            lengths, self._lengths, self._stride, self._skip = self._lengths, [], 1, 0
            from_s, self._taken_s = self._taken_s - self._start_s, now_s
        for stretch in itertools.chain.from_iterable(stretches.values()):
            stretch.start_s, stretch.end_s = stretch.start_s - self._start_s, stretch.end_s - self._start_s
        return Taken(from_s, now_s - self._start_s, stretches, lengths)


class Taken(msgspec.Struct, frozen=True):
    """Seconds since the worker's start: no clock is shared with anybody."""

    from_s: float
    until_s: float
    stretches: dict[Thread, list[Stretch]]  # in order, within [from_s, until_s], without overlap in a thread
    lengths: list[int]


def coarser(stretches: list[Stretch], most: int) -> list[Stretch]:
    """At most `most`: neighbours are joined where that tells the least time wrongly. Time told as busy is never told as anything else."""
    excess = len(stretches) - most
    if excess <= 0:
        return stretches
    pairs = list(itertools.pairwise(stretches))
    joined = set(sorted(range(len(pairs)), key=lambda index: _wrong(*pairs[index]))[:excess])
    kept = [stretches[0]]
    for index, stretch in enumerate(stretches[1:]):
        if index in joined:
            kept[-1] = _join(kept[-1], stretch)
        else:
            kept.append(stretch)
    return kept


def _wrong(first: Stretch, second: Stretch) -> tuple[bool, float]:
    """Seconds that are told wrongly when the two become one; last of all those of another activity."""
    gap_s = second.start_s - first.end_s
    other = first.activity != second.activity
    return other, gap_s + (min(first.seconds, second.seconds) if other or first.what != second.what else 0.0)


def _join(first: Stretch, second: Stretch) -> Stretch:
    """Called after the longer of the two; after the busy one if only one of them is."""
    if first.activity != second.activity:
        named = first if first.activity == "busy" else second
    else:
        named = first if first.seconds >= second.seconds else second
    return Stretch(named.activity, named.what, first.start_s, second.end_s)
