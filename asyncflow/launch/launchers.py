"""Which launcher a configuration asks for. That of Ray is imported only then: nothing else needs the package."""

from __future__ import annotations

from collections.abc import Callable

from asyncflow.config import RunConfig
from asyncflow.launch.launcher import Launcher, Say, Workers
from asyncflow.launch.local import LocalLauncher
from asyncflow.launch.plan import worker_specs


def make_launcher(config: RunConfig, say: Say, tick: Callable[[], None] = lambda: None, workers: Workers = worker_specs) -> Launcher:
    """By `launch`. See `Launcher` for the arguments."""
    if config.launch == "ray":
        from asyncflow.launch.ray.launcher import RayLauncher

        return RayLauncher(config, say, tick, workers)
    return LocalLauncher(config, say, tick, workers)
