"""What decoding for training costs. An evaluation decodes with the same engine, but its time is no service, so it is not measured here."""

from __future__ import annotations

from asyncflow.contracts.rollout import Chunk, Metered, RolloutEngine, Work
from asyncflow.workers.costs import CostMeter


class DecodeMeter:
    """Calls the engine's `chunks`, and takes down under "rollout.decode" and "rollout.prefill" what the engine says of it, if it is Metered."""

    def __init__(self, engine: RolloutEngine, costs: CostMeter) -> None:
        self._engine, self._costs = engine, costs
        self._measuring = False
        if isinstance(engine, Metered):
            engine.meter(self._add)

    def chunks(self) -> list[Chunk]:
        """See `RolloutEngine.chunks`."""
        self._measuring = True
        try:
            return self._engine.chunks()
        finally:
            self._measuring = False

    def _add(self, work: Work, size: float, seconds: float, calls: float = 1.0) -> None:
        if self._measuring:
            self._costs.add(f"rollout.{work}", size, seconds, calls)
