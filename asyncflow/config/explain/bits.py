"""Whether a run equals the synchronous loop bit for bit, condition by condition (invariant 6)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from asyncflow.config.algorithm import TORCH
from asyncflow.config.explain.roles import stages_of
from asyncflow.config.models import COMPUTED
from asyncflow.config.rollout import EMBEDDED
from asyncflow.config.root import RunConfig
from asyncflow.config.stages import default_stages


class Condition(msgspec.Struct, frozen=True):
    name: str
    met: bool
    here: str  # what this configuration says


class Bits(msgspec.Struct, frozen=True):
    """`equal`: the run makes the very weights that the synchronous loop makes, whoever produced or died on the way."""

    equal: bool
    conditions: list[Condition]


def bits(config: RunConfig) -> Bits:
    conditions = list(_conditions(config))
    return Bits(all(condition.met for condition in conditions), conditions)


def _conditions(config: RunConfig) -> Iterator[Condition]:
    yield Condition("staleness is 0", config.staleness == 0, f"staleness={'null' if config.staleness is None else config.staleness}")
    yield Condition("the embedded rollout engine", config.rollout.engine == EMBEDDED, f"rollout.engine={config.rollout.engine}")
    yield Condition("the torch train engine", config.algorithm.engine == TORCH, f"algorithm.engine={config.algorithm.engine}")
    others = [name for name, model in config.models.items() if model.dtype != COMPUTED]
    yield Condition(f"every model computes in {COMPUTED}", not others, _named("models", others))
    ranks = config.resources["trainer"].workers
    yield Condition("one trainer rank", ranks == 1, f"resources.trainer.workers={ranks}")
    computing = [role for role in config.resources if any(stage.model is not None for stage in stages_of(config, role))]
    threaded = [role for role in computing if config.resources[role].threads != 1]
    yield Condition("one thread in every worker that computes with a model", not threaded, _named("roles", threaded))
    placed = list(dict.fromkeys(place.role for place in config.places() if place.devices))
    yield Condition("every worker on the CPU", not placed, _named("roles", placed))
    one = config.launch == "local"
    yield Condition("every worker on one machine", one, "launch=local" if one else f"launch={config.launch}: only where its nodes have one processor")
    rows = [name for name, stage in config.stages.items() if stage.model is not None and stage.unit != "group"]
    yield Condition("models see whole groups, one a forward pass", not rows, _named("stages", rows))
    shuffled = config.algorithm.control == "shuffle_rewards"
    yield Condition("nothing depends on the order of arrival", not shuffled, f"algorithm.control={config.algorithm.control}")
    own = [name for name, stage in config.stages.items() if name not in default_stages() or stage.compute != default_stages()[name].compute]
    yield Condition("only stages that the synchronous loop has too", not own, _named("stages", own))


def _named(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names)}" if names else "so it is"
