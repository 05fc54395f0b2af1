"""Updates come faster than vLLM loads them, and requests are aborted at random: every prompt ends exactly once, within its budget."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from vllm_harness import STOP, load, prompts, qwen2, weights_id

from asyncflow.contracts.rollout import Chunk, Sampling
from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine
from asyncflow.workers.groups import GroupBook, Trajectory
from transfer_queue.messages import GroupLease

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
PROMPTS = 200
BUDGET = 8
EVERY_S = 0.05  # between two versions that are published
OPEN = 16  # groups at once: twice the slots
FENCE = 1


@dataclass
class Outcome:
    finished: dict[int, Trajectory] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    resumed: int = 0
    made: Counter[int] = field(default_factory=Counter)  # tokens of each version
    loaded: list[int] = field(default_factory=list)
    owed: list[int] = field(default_factory=list)  # versions with unfinished requests when the next one came: they decode at least one step


class Storm:
    """What a rollout worker does, against the engine alone."""

    def __init__(self, engine: VllmRolloutEngine, seed: int) -> None:
        self._engine, self._rng = engine, random.Random(seed)
        self._book = GroupBook(seed, Sampling(1.0), BUDGET, rows_per_group=1)
        self._models = [qwen2(40 + index) for index in range(3)]
        self.outcome = Outcome(loaded=[load(engine, self._models[0])])

    def run(self) -> Outcome:
        begin_s, first = time.monotonic(), self.outcome.loaded[0]
        waiting = list(enumerate(prompts(PROMPTS, seed=17)))
        while waiting or len(self._book):
            newest = first + int((time.monotonic() - begin_s) / EVERY_S)
            if newest > self.outcome.loaded[-1]:
                self._update(newest)
            while waiting and len(self._book) < OPEN:
                gid, prompt = waiting.pop()
                self._engine.generate(self._book.admit(GroupLease(gid, FENCE, self.outcome.loaded[-1], [0], {}), list(prompt)))
            if self._rng.random() < 0.1:
                self._drop()
            for chunk in self._engine.chunks(wait_s=0.01):
                self._take(chunk)
        return self.outcome

    def _update(self, newest: int) -> None:
        """Those between are never loaded."""
        if len(self._book):
            self.outcome.owed.append(self.outcome.loaded[-1])
        assert self._engine.loaded is not None
        self._engine.pause(self._rng.choices(["keep", "wait", "abort"], [8, 1, 3])[0])
        self._engine.load_weights(weights_id(newest, self._engine.loaded.epoch), hf_tensors(self._rng.choice(self._models)))
        self._engine.resume()
        self.outcome.loaded.append(newest)

    def _drop(self) -> None:
        gids = [gid for gid in range(PROMPTS) if gid in self._book]
        if gids:
            gid = self._rng.choice(gids)
            self._engine.abort(self._book.forget([(gid, FENCE)]))
            self.outcome.dropped.add(gid)

    def _take(self, chunk: Chunk) -> None:
        self.outcome.made[chunk.version] += len(chunk.token_ids)
        trajectory = self._book.absorb(chunk)
        if (rest := self._book.resume(chunk)) is not None:
            self._engine.generate([rest])
            self.outcome.resumed += 1
        if trajectory is not None:
            assert trajectory.gid not in self.outcome.finished
            self.outcome.finished[trajectory.gid] = trajectory
            self._book.close_if_complete(trajectory.gid)


def test_two_hundred_prompts_end_once_each_under_an_update_every_50_ms_and_random_aborts(engine: VllmRolloutEngine) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    outcome = Storm(engine, seed).run()
    assert outcome.finished.keys() | outcome.dropped == set(range(PROMPTS))
    assert not outcome.finished.keys() & outcome.dropped
    assert outcome.resumed > 0
    assert len(outcome.owed) > 10
    for trajectory in outcome.finished.values():
        assert (trajectory.finish == "stop") == (trajectory.token_ids[-1] == STOP)
        assert trajectory.finish == "stop" or len(trajectory.token_ids) == BUDGET
        assert len(trajectory.token_ids) == len(trajectory.logprobs) == len(trajectory.versions) <= BUDGET
        assert trajectory.versions == sorted(trajectory.versions)
        assert set(trajectory.versions) <= set(outcome.loaded)
    assert [version for version in outcome.owed if not outcome.made[version]] == []
