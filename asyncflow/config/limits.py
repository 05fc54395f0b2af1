"""Deadlines and bounds of a run: every wait has one."""

from __future__ import annotations

from asyncflow.config.settings import Settings


class LimitSettings(Settings, frozen=True):
    """How long anything may take, and how often a worker may die."""

    restarts: int = 3  # Who can be started again, controller and shards included, is so at most so often within `restart_window_s`, each for itself.
    restart_window_s: float = 60.0  # The window that `restarts` counts in.
    start_s: float = 120.0  # A process must be up and registered within this.
    place_s: float = 60.0  # launch=ray: every worker must have a place on a node within this; what no node could ever hold is refused at once.
    prepare_s: float = 600.0  # `models.*.prepare` must return within this.
    drain_s: float = 15.0  # After a stop workers have this long to end by themselves, then they are terminated, then killed.
    lease_s: float = 30.0  # A lease that made no progress for this long is handed out again (the trainer's never); a slow owner may still answer.
    heartbeat_s: float = 15.0  # A worker not heard of for this long counts as dead.
    stall_s: float = 60.0  # No progress for this long: the run ends and says whose move it was; after half of it people are told.
    reward_s: float = 5.0  # Longest time that scoring one row may take; past it the group is dropped and counted.
