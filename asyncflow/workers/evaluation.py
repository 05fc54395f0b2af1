"""Greedy evaluation on held-out items, run by a replica that was marked for it, with the weights it has loaded (decision 9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from asyncflow.contracts.rollout import Request, RolloutEngine, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.workers.context import REPLY_S, WorkerContext

Score = Callable[[int, Sequence[int]], float]
"""(item, response token ids) → the task's own score in [0, 1]."""


class Evaluator:
    """The denominator is every item: one that was cut off or could not be scored counts as 0, never as absent."""

    def __init__(self, context: WorkerContext, prompts: Sequence[Sequence[int]], score: Score) -> None:
        if not prompts:
            raise ValueError("evaluation.items is 0: an accuracy over nothing has no value; set at least 1, or evaluation.every: null for none")
        self._context, self._prompts, self._score = context, prompts, score

    def run(self, engine: RolloutEngine, weights: WeightsId) -> None:
        """Blocks until every item is answered and the result is reported, or until the run stops (then nothing is reported)."""
        start_s = time.monotonic()
        answers = self._answer(engine)
        if answers is None:
            return
        accuracy = sum(self._score(item, answer) >= 1.0 for item, answer in enumerate(answers)) / len(answers)
        data: dict[str, float | int | str] = {
            "model": weights.model,
            "epoch": weights.epoch,
            "version": weights.version,
            "digest": weights.digest,
            "accuracy": accuracy,
            "items": len(answers),
            "response_tokens_mean": sum(map(len, answers)) / len(answers),
            "seconds": time.monotonic() - start_s,
        }
        self._context.client.report("evaluation", data).result(REPLY_S)

    def _answer(self, engine: RolloutEngine) -> list[list[int]] | None:
        settings = self._context.config.rollout
        greedy = Sampling(temperature=0.0, stop_token_ids=settings.stop_token_ids)
        engine.generate([Request(f"eval/{item}", tuple(prompt), greedy, 0, settings.response_width) for item, prompt in enumerate(self._prompts)])
        answers: list[list[int]] = [[] for _ in self._prompts]
        open_items = len(answers)
        while open_items:
            self._context.control.check()
            if self._context.control.stopping:
                engine.abort([f"eval/{item}" for item in range(len(answers))])
                return None
            for chunk in engine.chunks():
                answers[int(chunk.id.removeprefix("eval/"))] += chunk.token_ids
                open_items -= chunk.finish is not None
        return answers
