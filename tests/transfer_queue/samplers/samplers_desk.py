"""The controller's state machine with groups of given versions and lengths: what tests of samplers start from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "controller"))  # whose desk this is

import numpy as np
from controller_desk import Desk, Who, gids
from controller_messages import put_rows

from transfer_queue import messages as m
from transfer_queue.samplers import Candidates

__all__ = ["Desk", "Hall", "Put", "Who", "gids", "named", "shortest_first", "topic"]

Put = tuple[int, int]  # version and tokens of one group


def topic(sampler: m.Sampler | str, *, unit: m.Unit = "group", rows: int = 1, train: m.Sampler | str = "oldest_first", **window: Any) -> m.TopicSpec:
    """tokens → judge, with this sampler; tokens → trainer, with `train`."""
    columns = (
        m.Column(name="prompt", dtype="uint8", kind="per_token", producer="source", shared=True),
        m.Column(name="tokens", dtype="uint8", kind="per_token", producer="rollout"),
        m.Column(name="score", dtype="uint8", kind="scalar", producer="judge"),
    )
    consumers = (
        m.Consumer(name="judge", inputs=("tokens",), outputs=("score",), unit=unit, sampler=sampler),
        m.Consumer(name="trainer", inputs=("tokens",), unit="group", terminal=True, sampler=train),
    )
    rules = m.Window(**{"batch": 4, "staleness": None, "policy": "drop", "group_bytes": 1, **window})
    return m.TopicSpec(name="t", model="policy", columns=columns, consumers=consumers, window=rules, prompts_bound=10_000, rows_per_group=rows)


class Hall(Desk):
    """A desk with one member of every role."""

    def __init__(self, spec: m.TopicSpec) -> None:
        super().__init__(spec, heartbeat_s=1e9, stall_s=1e9)
        self.source, self.rollout = self.join("source", "source"), self.join("rollout")
        self.judge, self.trainer = self.join("judge", "judge"), self.join("trainer", "trainer")

    def fill(self, puts: Sequence[Put]) -> list[int]:
        """A group a put, gids in order; its rows have `tokens`, tokens + 1, …, and its version or the oldest allowed one. Returns the gids."""
        self.prompts(len(puts), self.source)
        leases = self.pull(self.rollout, len(puts), loaded=self.topic.version)
        assert len(leases) == len(puts), "the window has room for all of them"
        for (wished, tokens), lease in zip(puts, leases, strict=True):
            version = max(wished, lease.min_version)
            rows = [m.RowPut(lease.gid, lease.fence, row, {"tokens": self.slice()}, tokens + row, version, version) for row in lease.rows]
            self.ask(self.rollout.connection, put_rows(rows, topic="t", close={lease.gid: len(rows)}, **self.rollout.fields), m.OkPut)
        return [lease.gid for lease in leases]

    def train(self, taken: Sequence[m.OkTaken]) -> None:
        step = self.topic.version
        self.ask(self.trainer.connection, self.commit(self.trainer, step, [each.lease for each in taken if each.lease != -1]), m.OkCommitted)

    def advance(self, versions: int) -> None:
        """Train so many whole batches, so that later groups can be of several versions."""
        for _ in range(versions):
            self.fill([(self.topic.version, 1)] * self.spec.window.batch)
            self.train([self.take(self.trainer, step=self.topic.version)])

    def judged(self, taken: m.OkTaken) -> None:
        self.judged_by(self.judge, taken)

    def judged_by(self, who: Who, taken: m.OkTaken) -> None:
        assert not self.write(who, taken, "judge", "score")

    def consumer(self, name: str = "judge") -> m.ConsumerStatus:
        return next(each for each in self.core.status().topics[0].consumers if each.name == name)


def shortest_first(ready: Candidates, limit: int, most_tokens: int = 1 << 30) -> np.ndarray:
    """A sampler with an option: rows that are longer come last."""
    return np.lexsort((ready.tokens, ready.tokens > most_tokens))[:limit]


chosen: Callable[..., Any] = lambda ready, limit: []  # noqa: E731  what `named` names


def named(choose: Callable[..., Any]) -> str:
    """An import path for a sampler that a test makes up."""
    global chosen
    chosen = choose
    return f"{__name__}:chosen"
