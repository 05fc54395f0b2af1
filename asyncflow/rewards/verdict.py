"""What became of a response's score, as one small integer in the column `verdict`: every zero says why it is one, and is counted under that name."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

VERDICT = "verdict"


class Verdict(IntEnum):
    """RIGHT scores 1, everything else 0."""

    WRONG = 0
    RIGHT = 1
    UNFINISHED = 2  # the response has no end: what was cut off is no answer
    NO_ANSWER = 3  # none of the forms that count as an answer is in it
    TOO_LONG = 4  # its answer has more characters than anybody compares
    TIMEOUT = 5  # comparing it took too long and was ended
    FAILED = 6  # comparing it raised, ran out of memory or crashed


def counted(verdicts: np.ndarray) -> dict[str, float]:
    """Rows by verdict ([R] of any integer type), a name each: verdict_right, verdict_wrong, …; those that nobody got are 0."""
    counts = np.bincount(verdicts.astype(np.int64), minlength=len(Verdict))
    return {f"{VERDICT}_{verdict.name.lower()}": float(counts[verdict]) for verdict in Verdict}
