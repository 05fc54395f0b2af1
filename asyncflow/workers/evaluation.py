"""Greedy evaluation on held-out items, run by a replica that was marked for it, with the weights it has loaded (decision 9)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from asyncflow.contracts.rollout import Request, RolloutEngine, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.data.task import Example
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.workers.context import REPLY_S, WorkerContext

LOOK_S = 0.5  # an engine that decodes elsewhere is waited for at most so long before the directive is looked at again
SIGNS = 4  # of life within the stall limit: an evaluation changes no ledger, so its progress must be told


class Evaluator:
    """The denominator is every item: one that was cut off or could not be scored in time counts as 0, never as absent."""

    def __init__(self, context: WorkerContext, questions: Sequence[Example], scorer: DeadlineScorer) -> None:
        if not questions:
            raise ValueError("evaluation.items is 0: an accuracy over nothing has no value; set at least 1, or evaluation.every: null for none")
        self._context, self._questions, self._scorer = context, questions, scorer
        self._sign_every_s = context.config.limits.stall_s / SIGNS
        self._sign_at_s = 0.0

    def run(self, engine: RolloutEngine, weights: WeightsId) -> bool:
        """Blocks until every item is answered and the result is reported. False when the run stops or this worker has to leave, or the engine was
        started anew with newer weights: then nothing was reported, and the duty is not done."""
        start_s = time.monotonic()
        answers = self._answer(engine, weights)
        if answers is None:
            return False
        scores = self._score(answers, weights)
        data: dict[str, float | int | str] = {
            "model": weights.model,
            "epoch": weights.epoch,
            "version": weights.version,
            "digest": weights.digest,
            "accuracy": sum(score is not None and score >= 1.0 for score in scores) / len(scores),
            "score_mean": sum(score or 0.0 for score in scores) / len(scores),
            "items": len(scores),
            "unscored": scores.count(None),
            "response_tokens_mean": sum(map(len, answers)) / len(answers),
            "seconds": time.monotonic() - start_s,
        }
        self._context.client.report("evaluation", data).result(REPLY_S)
        return True

    def _answer(self, engine: RolloutEngine, weights: WeightsId) -> list[list[int]] | None:
        answers: dict[str, list[int]] = {f"eval/{item}": [] for item in range(len(self._questions))}
        engine.generate([self._request(id_, question) for id_, question in zip(answers, self._questions, strict=True)])
        left = len(answers)
        self._sign_at_s = time.monotonic() + self._sign_every_s
        while left:
            self._context.control.check()
            if self._context.control.stopping:
                engine.abort(list(answers))
                return None
            chunks = engine.chunks(wait_s=LOOK_S)
            if engine.loaded is not None and weights < engine.loaded:  # the answers would be of two versions
                engine.abort(list(answers))
                engine.chunks()  # their last ones: the same items are asked again
                return None
            for chunk in chunks:
                if chunk.id not in answers:
                    continue  # the last word of a request that was aborted before: its group was dropped
                answers[chunk.id] += chunk.token_ids
                left -= chunk.finish is not None
                self._give_sign(weights, len(answers) - left)
        return list(answers.values())

    def _score(self, answers: list[list[int]], weights: WeightsId) -> list[float | None]:
        scores: list[float | None] = []
        for question, answer in zip(self._questions, answers, strict=True):
            scores += self._scorer([question.item], [answer])
            self._give_sign(weights, len(answers))
        return scores

    def _request(self, id_: str, question: Example) -> Request:
        settings = self._context.config.rollout
        return Request(id_, tuple(question.prompt_ids), Sampling(0.0, settings.stop_token_ids), 0, settings.response_width)

    def _give_sign(self, weights: WeightsId, answered: int) -> None:
        """Called for every chunk and score: a sign of life comes from work done, never from time alone, so what hangs still ends as a stall."""
        if time.monotonic() < self._sign_at_s:
            return
        self._sign_at_s = time.monotonic() + self._sign_every_s
        data: dict[str, float | int | str] = {"model": weights.model, "version": weights.version, "answered": answered, "items": len(self._questions)}
        self._context.client.report("evaluating", data).result(REPLY_S)
