"""Workers that hang on purpose: the real worker, of which one call never returns. Heartbeats go on, for they have a thread of their own."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from asyncflow.config import RunConfig
from asyncflow.contracts.worker import WorkerArgs
from asyncflow.launch.child import ChildSpec
from asyncflow.launch.launcher import Workers
from asyncflow.launch.plan import worker_specs
from asyncflow.worker import main

FOREVER_S = 3600.0


class Hang(msgspec.Struct, frozen=True):
    """Call number `call` (from 1) of `attribute` ("module:Class.method" or "module:function") hangs."""

    attribute: str
    call: int


def hanging(name: str, hang: Hang) -> Workers:
    """All workers of the run, of which `name` hangs."""

    def workers(config: RunConfig, controller: str, key: str | None) -> list[ChildSpec]:
        return [_with(spec, hang) if spec.name == name else spec for spec in worker_specs(config, controller, key)]

    return workers


def _with(spec: ChildSpec, hang: Hang) -> ChildSpec:
    return msgspec.structs.replace(spec, entry="tests.pipeline.hanging:run", args=(*spec.args, hang))


def run(args: WorkerArgs, hang: Hang) -> int:
    """Process entry."""
    module, _, path = hang.attribute.partition(":")
    holder: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for owner in owners:
        holder = getattr(holder, owner)
    setattr(holder, name, _hanging(getattr(holder, name), hang.call))
    return main(args)


def _hanging(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    calls = 0

    def hung(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= call:
            threading.Event().wait(FOREVER_S)
        return function(*args, **kwargs)

    return hung
