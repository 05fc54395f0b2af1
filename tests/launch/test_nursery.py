"""Children and their ends: none is forgotten, whoever saw it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from asyncflow.launch.child import ChildSpec
from asyncflow.launch.nursery import Nursery


@dataclass
class Ended:
    """A process that has ended already."""

    spec: ChildSpec
    exit_code: int = 1

    def close(self) -> None:
        """Nothing is held."""


def test_an_end_that_was_seen_while_an_answer_was_awaited_is_counted_at_the_end() -> None:
    nursery = Nursery(lambda spec: cast(Any, Ended(spec)), restarts=1, window_s=1.0)
    nursery.start(ChildSpec(name="scorer-0", role="scorer", entry="", args=(), log=""))
    nursery.look()
    assert nursery.children == {}
    assert nursery.end(0.0) == {"scorer-0": 1}
