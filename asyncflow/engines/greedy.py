"""How often a rollout engine answers right, outside any run: for the warm start, the reference loop and for trying things out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from transformers import PreTrainedModel

from asyncflow.config.embedded import embedded_settings
from asyncflow.config.rollout import EMBEDDED
from asyncflow.contracts.rollout import Finish, Request, RolloutEngine, Sampling
from asyncflow.data.stops import folder_stops, model_stops
from asyncflow.data.task import Example, Task
from asyncflow.engines.model import load_hf
from asyncflow.engines.rollout.embedded.engine import EmbeddedRolloutEngine
from asyncflow.engines.seeds import sample_seed

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


Answer = tuple[list[int], list[float], Finish]  # token ids, log-probabilities, how it ended


def make_embedded(model: PreTrainedModel | Path, config: RunConfig) -> EmbeddedRolloutEngine:
    """An embedded engine in the run's shapes, still to be started. It owns `model`; weights come with the first load."""
    rollout = config.rollout
    network = model if isinstance(model, PreTrainedModel) else load_hf(model)
    stops = rollout.stop_token_ids or (model_stops(network) if isinstance(model, PreTrainedModel) else folder_stops(model))
    return EmbeddedRolloutEngine(
        network,
        slots=rollout.slots,
        prompt_width=rollout.prompt_width,
        kv_width=rollout.cache_width,
        stop_token_ids=stops,
        **msgspec.structs.asdict(embedded_settings(rollout.options if rollout.engine == EMBEDDED else {})),  # another engine's are none of its own
    )


def accuracy(engine: RolloutEngine, task: Task, questions: Sequence[Example], budget: int, temperature: float = 0.0) -> float:
    """Share of `questions` whose answer of at most `budget` tokens has full score; greedy at temperature 0, else one seeded sample a question.
    The denominator is every question."""
    requests = [Request(str(i), tuple(q.prompt_ids), Sampling(temperature), sample_seed(0, i, 0), budget) for i, q in enumerate(questions)]
    answers = generate_all(engine, requests)
    return sum(task.score(question.item, answers[str(i)][0]) >= 1.0 for i, question in enumerate(questions)) / len(questions)


def generate_all(engine: RolloutEngine, requests: Sequence[Request]) -> dict[str, Answer]:
    """Run requests to their ends: id → (token ids, log-probabilities, finish). An embedded engine advances with every call, so this ends."""
    found: dict[str, Answer] = {request.id: ([], [], "aborted") for request in requests}
    engine.generate(requests)
    open_requests = len(requests)
    while open_requests:
        for chunk in engine.chunks():
            token_ids, logprobs, finish = found[chunk.id]
            found[chunk.id] = ([*token_ids, *chunk.token_ids], [*logprobs, *chunk.logprobs], chunk.finish or finish)
            open_requests -= chunk.finish is not None
    return found
