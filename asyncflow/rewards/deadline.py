"""A scorer that hangs must not hang the run: scoring happens in a thread, and a row that takes too long is given up by name."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from asyncflow.rewards.row_clock import Running, Stopped, carry, uncounted

Score = Callable[[bytes, Sequence[int]], float]
Job = tuple[int, bytes, list[int]]  # (row of the batch, item, response)
Answer = float | BaseException | Stopped | Running


class DeadlineScorer:
    """Scores rows one after the other in a daemon thread, each within `deadline_s` seconds of its own (`row_clock.uncounted` is not).

    Python cannot end a thread: one that hangs is left behind (a daemon, it ends with the process) and a new one takes its place, at most
    `max_hung` times; then scoring raises, for a scorer that always hangs is a fault of the run and not of a row.
    """

    def __init__(self, score: Score, deadline_s: float, max_hung: int = 16) -> None:
        if deadline_s <= 0:
            raise ValueError(f"limits.reward_s = {deadline_s}: it must be above 0, or no row could ever be scored; give each row some seconds")
        self._score, self._deadline_s, self._max_hung = score, deadline_s, max_hung
        self._hung = 0
        self.at = 0  # the row of the batch that is, or was last, scored
        self._start()

    def __call__(self, items: Sequence[bytes], responses: Sequence[Sequence[int]]) -> list[float | None]:
        """One score a row, aligned with `items`; None for a row that took longer than the deadline. What the scorer raises is raised here."""
        jobs = [(row, item, list(response)) for row, (item, response) in enumerate(zip(items, responses, strict=True))]
        scores: list[float | None] = [None] * len(jobs)
        at = 0
        while at < len(jobs):
            self._jobs.put(jobs[at:])
            at = self._collect(scores, at)
        return scores

    def close(self) -> None:
        self._jobs.put(None)

    def _collect(self, scores: list[float | None], at: int) -> int:
        """Take answers from row `at` on. Returns where to go on: behind the last row, or behind the row that hung."""
        while at < len(scores):
            self.at = at
            outcome = self._next()
            if outcome is None:
                self._give_up()
                return at + 1
            if isinstance(outcome, BaseException):
                raise outcome
            scores[at] = outcome
            at += 1
        return at

    def _next(self) -> float | BaseException | None:
        """What became of a row; None where its own time is over. Raises TimeoutError where the scorer does not come up."""
        left_s = self._deadline_s
        while True:
            since_s = time.monotonic()
            try:
                answer = self._answers.get(timeout=max(0.0, left_s))
            except queue.Empty:
                return None
            left_s -= time.monotonic() - since_s
            if isinstance(answer, Stopped):
                self._wait_for(answer)
            elif not isinstance(answer, Running):
                return answer

    def _wait_for(self, stopped: Stopped) -> None:
        try:
            with uncounted(stopped.what, stopped.within_s):  # the lease of these rows stands still as well
                self._answers.get(timeout=stopped.within_s)  # nothing but `Running` comes next
        except queue.Empty:
            rule = f"it must be done within {stopped.within_s:g} s"
            raise TimeoutError(f"the scorer is not ready: {stopped.what} goes on, and {rule}; nothing can be scored; its log may say why") from None

    def _give_up(self) -> None:
        self._hung += 1
        if self._hung > self._max_hung:
            raise TimeoutError(
                f"the scorer hung {self._hung} times, each longer than limits.reward_s = {self._deadline_s:g} s; at most {self._max_hung} may, so "
                f"the run ends; mend the scorer or raise limits.reward_s"
            )
        self._start()

    def _start(self) -> None:
        """Fresh queues as well: whatever the abandoned thread still says goes where nobody listens."""
        self._jobs: queue.Queue[list[Job] | None] = queue.Queue(maxsize=2)  # one batch and the end mark
        self._answers: queue.Queue[Answer] = queue.Queue()  # bounded by the one batch that is out
        threading.Thread(target=_work, args=(self._score, self._jobs, self._answers), name="scorer", daemon=True).start()


def _work(score: Score, jobs: queue.Queue[list[Job] | None], answers: queue.Queue[Answer]) -> None:
    carry(answers.put)
    while (batch := jobs.get()) is not None:
        for _, item, response in batch:
            try:
                answers.put(score(item, response))
            except BaseException as error:  # whatever it is, it belongs to the caller's thread
                answers.put(error)
                break
