"""One version on its way from a trainer's device into vLLM, phase by phase."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from asyncflow.contracts.rollout import Chunk, Request, Sampling
from asyncflow.engines.model import hf_tensors
from asyncflow.engines.rollout.vllm.arguments import Shape
from asyncflow.engines.rollout.vllm.engine import VllmRolloutEngine
from asyncflow.engines.rollout.vllm.settings import VllmSettings
from benchmarks.queue_bench.asking import Asked
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import Receiver
from checkpoint_engine.weights_id import WeightsId

WAIT_S = 120.0  # for any phase
PUBLISHING = "benchmarks.weights_bench.publishing"


class Phases(msgspec.Struct, frozen=True):
    """Seconds."""

    copy_out: float  # from the trainer's device into the publisher's slot: the trainer waits so long
    digest: float  # until the publisher has hashed it and says so
    map: float  # by the receiver: the slot, and every tensor's digest verified; it may begin before the trainer hears that the version is published
    load: float  # into vLLM, from the safe point before to the one after
    first_token: float  # from a request to its first token under the new weights


class Answer(msgspec.Struct):
    token_ids: list[int] = []
    logprobs: list[float] = []


class Way:
    """A publisher's process, a trainer's client, a receiver and vLLM, as the workers of a run have them."""

    def __init__(self, stack: ExitStack, model: PreTrainedModel, folder: Path, shape: Shape, settings: VllmSettings) -> None:
        """Everything it starts ends with `stack`. `model`: the trainer's, on its device."""
        self._model = model
        model.config.save_pretrained(folder)
        endpoint = stack.enter_context(Asked(PUBLISHING)).ask("start", transport="pull")["endpoint"]
        self.client = PublisherClient(endpoint)
        stack.callback(self.client.close)
        self._came, self._arrived = threading.Condition(), set[int]()
        self._receiver = Receiver("rollout-0#0", endpoint, on_ready=self._ready, collective=False)
        stack.callback(self._receiver.close)
        self.engine = VllmRolloutEngine("rollout-0", shape, settings, stop_token_ids=(0,))
        stack.callback(self.engine.close)
        self.engine.start()

    def _ready(self, weights: WeightsId) -> None:
        """On the receiver's thread."""
        with self._came:
            self._arrived.add(weights.version)
            self._came.notify_all()

    def bring(self, version: int, prompt: tuple[int, ...]) -> Phases:
        """The model as it is now, as that version."""
        weights = WeightsId("policy", 0, version)
        begin = time.monotonic()
        self.client.publish(weights, lambda: hf_tensors(self._model), wait_s=WAIT_S)
        copied = time.monotonic()
        self.client.wait_published(weights, WAIT_S)
        hashed = time.monotonic()
        with self._came:
            assert self._came.wait_for(lambda: version in self._arrived, WAIT_S), f"version {version} did not come within {WAIT_S:g} s"
            mapped_s = self._receiver.counters.receive_s
        start = time.monotonic()
        with self._receiver.get_weights() as held:
            self.engine.load_weights(held.weights, held)
        loaded = time.monotonic()
        ((first, _),) = self._chunks([prompt], tokens=1)
        return Phases(copied - begin, hashed - copied, mapped_s, loaded - start, first - loaded)

    def greedy(self, prompts: list[tuple[int, ...]], tokens: int) -> list[Answer]:
        """All under the version that was brought last."""
        answers = [Answer() for _ in prompts]
        for _, chunk in self._chunks(prompts, tokens):
            answer = answers[int(chunk.id)]
            answer.token_ids += chunk.token_ids
            answer.logprobs += chunk.logprobs
        return answers

    def _chunks(self, prompts: list[tuple[int, ...]], tokens: int) -> Iterator[tuple[float, Chunk]]:
        """Each with when it came (monotonic), until all requests have ended. Ids are the prompts' indexes."""
        self.engine.generate([Request(str(id_), prompt, Sampling(0.0), 0, tokens) for id_, prompt in enumerate(prompts)])
        left, deadline = len(prompts), time.monotonic() + WAIT_S
        while left:
            for chunk in self.engine.chunks(wait_s=1.0):
                assert self.engine.loaded is not None
                assert chunk.version == self.engine.loaded.version, "a token of other weights than the loaded ones"
                left -= chunk.finish is not None
                yield time.monotonic(), chunk
            assert time.monotonic() < deadline, f"{left} requests did not end within {WAIT_S:g} s"


def redraw(model: PreTrainedModel, seed: int) -> None:
    """Other random matrices, drawn where they lie; norms stay."""
    generator = torch.Generator(model.device).manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, model.config.initializer_range, generator=generator)


def farthest(model: PreTrainedModel, prompt: tuple[int, ...], answer: Answer) -> float:
    """The largest difference between vLLM's log-probabilities and the model's own: of its tokens, and of the likeliest ones there."""
    ids = torch.tensor([[*prompt, *answer.token_ids]], device=model.device)
    with torch.no_grad():
        own = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    said = torch.tensor(answer.logprobs, device=model.device)
    of_tokens = own.gather(1, torch.tensor(answer.token_ids, device=model.device)[:, None])[:, 0]
    return float(torch.maximum((said - of_tokens).abs(), (own.amax(-1) - of_tokens).abs()).max())
