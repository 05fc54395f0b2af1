"""How a response's end is written in the column `finish`: one small integer, the same for who writes and who reads it."""

from __future__ import annotations

from asyncflow.contracts.rollout import Finish

FINISH_CODES: dict[Finish, int] = {"stop": 0, "length": 1, "aborted": 2}
STOP, LENGTH, ABORTED = 0, 1, 2
