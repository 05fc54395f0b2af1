"""Small random models, an engine over them, and what requests came to: shared by the tests of the vLLM engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from asyncflow.contracts.rollout import Chunk, Request, Sampling
from asyncflow.contracts.weights import WeightsId
from asyncflow.engines.model import ModelShape, build_model, hf_tensors
from asyncflow.engines.rollout.vllm.arguments import Shape
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine
from asyncflow.engines.rollout.vllm.settings import VllmSettings

STOP = 2
VOCAB = 100
WIDTH = 128
SHAPE = ModelShape(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=2, head_dim=32, max_positions=WIDTH, eos_token_id=STOP
)
BLOCK = 32  # tokens of a block of the KV cache: the fewest on the CPU, so that short prompts fill whole blocks
PATIENCE_S = 500.0  # a start takes 20 s on an idle machine, and minutes on a busy one


def qwen2(seed: int, tied: bool = True) -> PreTrainedModel:
    return _spread(build_model(ModelShape(**{name: getattr(SHAPE, name) for name in SHAPE.__struct_fields__} | {"tied": tied}), seed), seed)


def llama(seed: int, tied: bool = True) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=WIDTH,
        tie_word_embeddings=tied,
        eos_token_id=STOP,
        bos_token_id=1,
    )
    return _spread(LlamaForCausalLM(config).float(), seed)


def _spread(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """Weights so far apart that greedy tokens are no matter of rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def weights_id(version: int, epoch: int = 0) -> WeightsId:
    return WeightsId("policy", epoch, version)


def next_id(engine: VllmRolloutEngine, by: int = 1) -> WeightsId:
    """`by` versions after what is loaded."""
    return weights_id(0) if engine.loaded is None else weights_id(engine.loaded.version + by, engine.loaded.epoch)


def load(engine: VllmRolloutEngine, model: torch.nn.Module) -> int:
    """As the next version, which is returned."""
    weights = next_id(engine)
    engine.load_weights(weights, hf_tensors(model))
    return weights.version


def start_engine(
    folder: Path, model: PreTrainedModel, slots: int = 8, arguments: Mapping[str, object] | None = None, **settings: object
) -> VllmRolloutEngine:
    """Started over `model`'s config.json alone: there are no weights in the folder. `arguments`: further ones of vLLM's."""
    model.config.save_pretrained(folder)
    given = VllmSettings(kv_cache_bytes=64 << 20, arguments={"block_size": BLOCK, **(arguments or {})}, **settings)
    engine = VllmRolloutEngine("rollout-0", Shape(folder, "float32", slots, WIDTH), given)
    engine.start()
    return engine


@dataclass
class Outcome:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    finishes: list[str] = field(default_factory=list)

    def add(self, chunk: Chunk) -> None:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert not self.finishes, f"{chunk.id} went on after its finish"
        self.tokens += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.version] * len(chunk.token_ids)
        self.epochs += [chunk.epoch] * len(chunk.token_ids)
        self.finishes += [chunk.finish] if chunk.finish else []


Outcomes = dict[str, Outcome]


def collect(chunks: Sequence[Chunk], into: Outcomes) -> Outcomes:
    for chunk in chunks:
        into.setdefault(chunk.id, Outcome()).add(chunk)
    return into


def finish_all(engine: VllmRolloutEngine, into: Outcomes | None = None) -> Outcomes:
    """Fetch until every request has ended."""
    outcomes: Outcomes = {} if into is None else into
    deadline = time.monotonic() + PATIENCE_S
    while True:
        chunks = engine.chunks(wait_s=1.0)
        collect(chunks, outcomes)
        capacity = engine.capacity()
        if not chunks and capacity.running + capacity.queued == 0:
            return outcomes
        assert time.monotonic() < deadline, f"not finished: {capacity}"


def until_running(engine: VllmRolloutEngine, count: int, into: Outcomes) -> None:
    """Fetch until at least `count` requests have a token and go on."""
    deadline = time.monotonic() + PATIENCE_S
    while engine.capacity().running < count:
        collect(engine.chunks(wait_s=0.01), into)
        assert time.monotonic() < deadline


def run(engine: VllmRolloutEngine, requests: Sequence[Request]) -> Outcomes:
    engine.generate(requests)
    return finish_all(engine)


def prompts(count: int, seed: int = 0, length: int | None = None) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(3, VOCAB, length or rng.integers(1, 20)).tolist()) for _ in range(count)]


def greedy(name: str, prompt: tuple[int, ...], tokens: int = 12) -> Request:
    return Request(name, prompt, Sampling(0.0), seed=0, budget_left=tokens)


def sampled(name: str, prompt: tuple[int, ...], seed: int, tokens: int = 20, temperature: float = 1.0) -> Request:
    return Request(name, prompt, Sampling(temperature), seed=seed, budget_left=tokens)


def log_probs(model: PreTrainedModel, prompt: tuple[int, ...], tokens: list[int], temperature: float = 1.0) -> np.ndarray:
    """transformers' own, [len(tokens), VOCAB]: of each token's distribution."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].float()
    return (logits / temperature).log_softmax(-1).numpy()


def assert_greedy(model: PreTrainedModel, prompt: tuple[int, ...], outcome: Outcome, atol: float = 1e-4) -> None:
    """Every token is the likeliest one of transformers' (within rounding), and has its log-probability."""
    expected = log_probs(model, prompt, outcome.tokens)
    chosen = expected[np.arange(len(outcome.tokens)), outcome.tokens]
    np.testing.assert_allclose(outcome.logprobs, chosen, atol=atol)
    np.testing.assert_allclose(chosen, expected.max(axis=1), atol=atol)


def check_new_weights(engine: VllmRolloutEngine, model: PreTrainedModel) -> None:
    """Load them; then greedy tokens are theirs."""
    version, asked = load(engine, model), prompts(6, seed=3)
    outcomes = run(engine, [greedy(f"n{i}", prompt) for i, prompt in enumerate(asked)])
    for i, prompt in enumerate(asked):
        assert_greedy(model, prompt, outcomes[f"n{i}"])
        assert set(outcomes[f"n{i}"].versions) == {version}


Answer = tuple[list[int], list[float]]  # token ids, log-probabilities


def fresh_answers(models: Sequence[PreTrainedModel], asked: Sequence[tuple[int, ...]], tokens: int, scratch: Path) -> list[list[Answer]]:
    """Greedy answers of a fresh vLLM for each model: [model][prompt]."""
    folders = []
    for index, model in enumerate(models):
        folders.append(scratch / f"model{index}")
        model.save_pretrained(folders[-1])
    ask, answers = scratch / "ask.json", scratch / "answers.json"
    ask.write_text(json.dumps({"folders": list(map(str, folders)), "prompts": asked, "tokens": tokens}))
    command = [sys.executable, str(Path(__file__).with_name("fresh.py")), str(ask), str(answers)]
    subprocess.run(command, check=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return json.loads(answers.read_text())
