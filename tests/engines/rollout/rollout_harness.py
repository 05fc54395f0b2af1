"""A small model, an engine over it, and what a request came to: shared by the tests of the embedded engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from asyncflow.contracts.rollout import Chunk, Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import ModelShape, build_model, hf_tensors
from asyncflow.engines.rollout.embedded import EmbeddedRolloutEngine

SHAPE = ModelShape(vocab_size=21, hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=1, head_dim=32, max_positions=64)
STOP = 1


def new_engine(seed: int = 1, shape: ModelShape = SHAPE, **settings: int) -> EmbeddedRolloutEngine:
    """Started, with random weights from `seed` loaded as version 0."""
    defaults = {"slots": 8, "prompt_width": 8, "kv_width": 48, "prefill_rows": 3} | settings
    engine = EmbeddedRolloutEngine(build_model(shape, seed=0), stop_token_ids=(STOP,), **defaults)
    engine.start()
    load(engine, 0, seed, shape)
    return engine


def load(engine: EmbeddedRolloutEngine, version: int, seed: int, shape: ModelShape = SHAPE) -> None:
    engine.load_weights(WeightsId("policy", 0, version), hf_tensors(build_model(shape, seed=seed)))


def new_requests(count: int, seed: int = 0, group: int = 3, budget: int = 16, temperature: float = 1.0) -> list[Request]:
    """Groups of `group` samples share a prompt of 1..10 tokens (some are longer than the prefill width)."""
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(2, SHAPE.vocab_size, rng.integers(1, 11)).tolist()) for _ in range(-(-count // group))]
    return [
        Request(f"r{i}", prompts[i // group], Sampling(temperature), seed=1000 * seed + i, budget_left=int(rng.integers(1, budget + 1)))
        for i in range(count)
    ]


@dataclass
class Outcome:
    """What a request came to; `bits` are the log-probabilities' own."""

    tokens: list[int] = field(default_factory=list)
    bits: bytes = b""
    versions: list[int] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert not self.finishes, f"{chunk.id} went on after its finish"
        self.tokens += chunk.token_ids
        self.bits += np.asarray(chunk.logprobs, dtype=np.float32).tobytes()
        self.versions += [chunk.version] * len(chunk.token_ids)
        self.finishes += [chunk.finish] if chunk.finish else []

    @property
    def logprobs(self) -> np.ndarray:
        return np.frombuffer(self.bits, dtype=np.float32)


def collect(chunks: Sequence[Chunk], into: dict[str, Outcome]) -> None:
    for chunk in chunks:
        into.setdefault(chunk.id, Outcome()).add(chunk)


def finish_all(engine: EmbeddedRolloutEngine, into: dict[str, Outcome] | None = None) -> dict[str, Outcome]:
    """Decode until the engine is idle (bounded)."""
    outcomes: dict[str, Outcome] = {} if into is None else into
    for _ in range(2000):
        chunks = engine.chunks()
        if not chunks:
            return outcomes
        collect(chunks, outcomes)
    raise AssertionError("the engine is still busy after 2000 steps")


def run(engine: EmbeddedRolloutEngine, requests: Sequence[Request]) -> dict[str, Outcome]:
    engine.generate(requests)
    return finish_all(engine)
