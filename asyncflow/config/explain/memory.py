"""Bytes: what a group reserves, what admission lets in, what shards hold, and what versions of weights take."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from asyncflow.config.explain.roles import followers, pulling
from asyncflow.config.models import ModelSettings
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.flow.bytes import column_bytes, element_bytes, prompt_bytes
from transfer_queue.controller.window import WindowRules
from transfer_queue.messages import TopicSpec

MOST_HEADER = 100 << 20  # bytes of a safetensors header, as the format bounds it


class Samples(msgspec.Struct, frozen=True):
    """Where the bytes of samples go. All figures are worst cases."""

    group: int  # reserved at admission
    columns: dict[str, int]  # of one group, by column
    budget: int  # flow.budget_bytes
    capacity: int | None  # what the groups of a full window need; None without a bound
    batch: int  # what one batch needs: the least budget there can be
    prompts: int  # of the prompts that wait for admission
    shards: int  # what all shards hold
    shards_free: int  # beside budget and prompts
    staleness_fits: int  # largest staleness whose whole window the budget holds


class Model(msgspec.Struct, frozen=True):
    """Weights of one model."""

    name: str
    source: str
    dtype: str
    parameters: int | None  # None: not known before its files are there
    bytes: int | None


class Weights(msgspec.Struct, frozen=True):
    """Where published versions lie."""

    slots: int  # of the publisher: one served, the others read or written
    receiver_slots: int  # of each of the others
    caches: list[str]  # the publisher, and followers that a broadcast reaches: each has slots of its own
    mapping: list[str]  # followers that pull: on the publisher's host they map its slots, elsewhere they have slots of their own, too
    bytes: int | None  # over all caches; None: not known before the model's files are there
    transport: str
    backend: str


class Memory(msgspec.Struct, frozen=True):
    samples: Samples
    models: list[Model]
    weights: Weights


def memory(config: RunConfig, topic: TopicSpec) -> Memory:
    models = [_model(config, name, model) for name, model in config.models.items()]
    policy = next(model for model in models if model.name == POLICY)
    return Memory(_samples(config, topic), models, _weights(config, policy.bytes))


def _weights(config: RunConfig, model_bytes: int | None) -> Weights:
    slots, each, mapping = config.weights.cache_slots + 1, config.weights.receiver_slots, pulling(config)
    caches = ["publisher-0", *(name for name in followers(config) if name not in mapping)]
    total = None if model_bytes is None else model_bytes * (slots + each * (len(caches) - 1))
    return Weights(slots, each, caches, mapping, total, config.weights.transport, config.weights.backend)


def _samples(config: RunConfig, topic: TopicSpec) -> Samples:
    window, rules = topic.window, WindowRules(topic.window)
    prompts, shards = topic.prompts_bound * prompt_bytes(config), config.queue.shards * config.queue.shard_bytes
    return Samples(
        group=window.group_bytes,
        columns=column_bytes(config),
        budget=window.budget_bytes,
        capacity=None if rules.capacity is None else rules.capacity * window.group_bytes,
        batch=window.batch * window.group_bytes,
        prompts=prompts,
        shards=shards,
        shards_free=shards - window.budget_bytes - prompts,
        staleness_fits=window.budget_bytes // (window.batch * window.group_bytes) - 1,
    )


def _model(config: RunConfig, name: str, model: ModelSettings) -> Model:
    origin = model if model.same_as is None else config.models[model.same_as]
    origins = {"path": model.path, "made by": model.prepare, "same as": model.same_as}
    source = next(f"{how} {what}" for how, what in origins.items() if what is not None)
    count = None if origin.path is None else parameters(Path(origin.path))
    return Model(name, source, model.dtype, count, None if count is None else count * element_bytes(model.dtype))


def parameters(folder: Path) -> int | None:
    """Elements of all tensors in a folder of safetensors files, read from their headers; None where there are none that can be read."""
    counts = [_elements(file) for file in sorted(folder.glob("*.safetensors"))]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _elements(file: Path) -> int | None:
    """The format: 8 bytes length, little endian; then a JSON of {tensor: {dtype, shape, data_offsets}}."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size)) if size <= MOST_HEADER else None
    except (OSError, ValueError):
        return None
    if not isinstance(header, dict):
        return None
    total = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            count = 1
            for length in tensor["shape"]:
                count *= length
            total += count
    return total
