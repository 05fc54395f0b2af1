"""In which order consumers are served, and how a batch is dealt to data-parallel ranks. `docs/transfer_queue.md`, "Samplers"."""

from transfer_queue.samplers.candidates import Candidates, Choose
from transfer_queue.samplers.declared import ORDERS, RANKED, REPLAYS, Plan, SamplerError, plan_of
from transfer_queue.samplers.karmarkar_karp import balanced
from transfer_queue.samplers.replay import ReplayError, check_replay

__all__ = ["ORDERS", "RANKED", "REPLAYS", "Candidates", "Choose", "Plan", "ReplayError", "SamplerError", "balanced", "check_replay", "plan_of"]
