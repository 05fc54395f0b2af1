"""`LocalLauncher`: every process of the run on this machine, forked from one preloaded server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from asyncflow.config import RunConfig
from asyncflow.launch.child import Child
from asyncflow.launch.forkserver import context
from asyncflow.launch.launcher import Launcher, Say, Workers
from asyncflow.launch.plan import worker_specs


class LocalLauncher(Launcher):
    """See `Launcher`."""

    def __init__(self, config: RunConfig, say: Say, tick: Callable[[], None] = lambda: None, workers: Workers = worker_specs) -> None:
        super().__init__(config, say, partial(Child, context(config)), tick, workers)
