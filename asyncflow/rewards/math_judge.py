"""Whether a response answers a mathematical question: find its answer, compare plain whole numbers here, all else by math-verify beside us."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Sequence

from asyncflow.rewards.answers import FORMS, MOST_CHARS, Form, cleaned, find_answer, whole
from asyncflow.rewards.math_process import EXTRA, CompareFailed, MathProcess
from asyncflow.rewards.verdict import Verdict

log = logging.getLogger(__name__)
SHOWN = 80  # characters of an answer in a message
MOST_WARNINGS = 20  # a run that scores millions of rows does not fill its disk with them


class MathJudge:
    """Called with texts, never raises for what is in them. One comparison takes at most `deadline_s` seconds and `most_bytes` of memory."""

    def __init__(self, forms: Sequence[Form] = FORMS, deadline_s: float = 5.0, most_bytes: int = 2 << 30) -> None:
        unknown = [form for form in forms if form not in FORMS]
        if unknown or not forms:
            rule = f"each must be one of {', '.join(FORMS)}, and there must be one"
            raise ValueError(f"task.options.forms = {list(forms)}: {rule}; no answer would be found. Fix: task.options.forms=[{','.join(FORMS)}]")
        if deadline_s <= 0:
            raise ValueError(f"task.options.compare_s = {deadline_s}: it must be above 0; nothing could be compared. Fix: task.options.compare_s=5")
        if importlib.util.find_spec("math_verify") is None:  # now, and not at the first answer that needs it, hours later
            raise RuntimeError(f"math-verify is not installed: answers could not be compared, so nothing is started. Fix: {EXTRA}")
        self._forms = forms
        self._process = MathProcess(deadline_s, most_bytes)
        self._lock = threading.Lock()  # a thread that was given up may still be in here; by the deadline it is not
        self._warnings = 0

    def __call__(self, truths: Sequence[str], text: str) -> Verdict:
        """Of the text of a finished response. Any of `truths` will do."""
        found = find_answer(text, self._forms)
        if found is None:
            return Verdict.NO_ANSWER
        if len(found) > MOST_CHARS:
            return Verdict.TOO_LONG
        answer, wanted = cleaned(found), [cleaned(truth) for truth in truths]
        if not answer:
            return Verdict.NO_ANSWER
        number, numbers = whole(answer), [whole(truth) for truth in wanted]
        if answer in wanted or (number is not None and number in numbers):
            return Verdict.RIGHT
        if number is not None and None not in numbers:
            return Verdict.WRONG
        return self._compare(wanted, answer)

    def start(self) -> None:
        """Have the process run that compares, before there is anything to compare. Raises RuntimeError when it does not come up."""
        with self._lock:
            self._process.start()

    def close(self) -> None:
        with self._lock:
            self._process.close()

    def _compare(self, truths: list[str], answer: str) -> Verdict:
        try:
            with self._lock:
                return Verdict.RIGHT if self._process.equal(truths, answer) else Verdict.WRONG
        except TimeoutError as error:
            self._warn("took too long", truths, answer, error)
            return Verdict.TIMEOUT
        except CompareFailed as error:
            self._warn("failed", truths, answer, error)
            return Verdict.FAILED

    def _warn(self, what: str, truths: list[str], answer: str, error: Exception) -> None:
        self._warnings += 1
        if self._warnings <= MOST_WARNINGS:
            last = "; there may be more, which are counted only" if self._warnings == MOST_WARNINGS else ""
            log.warning("comparing %r with %r %s (%s): the response scores 0%s", answer[:SHOWN], truths, what, error, last)
