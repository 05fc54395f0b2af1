"""How a worker joins a run: what it is started with. The rest it asks for: it registers and gets the resolved configuration and the roster."""

from __future__ import annotations

import os

import msgspec

EXPELLED = os.EX_TEMPFAIL  # exit code of a worker that lost touch with the controller, or counts as dead there: started again, it joins anew

class WorkerArgs(msgspec.Struct, frozen=True):
    """All that a launcher gives to a worker, here or on another host: who it is, and where the controller is."""

    role: str  # source | rollout | trainer | publisher | shard | any role of `resources` that lists stages
    name: str  # stable across restarts, e.g. rollout-0
    controller: str  # tcp://host:port
    key: str | None = None  # client.key file; required beyond loopback
    threads: int = 1  # torch and OpenMP threads of this process
