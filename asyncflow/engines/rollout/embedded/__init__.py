"""A rollout engine inside the worker's own process: a transformers model, fixed decode slots, tokens that depend on nothing but the request."""

from typing import TYPE_CHECKING

from asyncflow.engines.rollout.embedded.engine import EmbeddedRolloutEngine
from asyncflow.engines.rollout.embedded.sampling import NonFiniteLogitsError

if TYPE_CHECKING:
    from asyncflow.contracts.rollout import RolloutEngine

    def _keeps_the_contract(engine: EmbeddedRolloutEngine) -> RolloutEngine:
        return engine


__all__ = ["EmbeddedRolloutEngine", "NonFiniteLogitsError"]
