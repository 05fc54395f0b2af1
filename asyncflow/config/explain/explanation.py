"""`Explanation`: everything that a configuration means, as one record."""

from __future__ import annotations

import msgspec

from asyncflow.config.check import refusals
from asyncflow.config.explain.admission import Admission, admission
from asyncflow.config.explain.bits import Bits, bits
from asyncflow.config.explain.length import Length, length
from asyncflow.config.explain.memory import Memory, memory
from asyncflow.config.explain.ratio import OldLogprobs, old_logprobs
from asyncflow.config.explain.roles import Processes, processes
from asyncflow.config.explain.schedule import Schedule, schedule
from asyncflow.config.explain.storage import Storage, storage
from asyncflow.config.explain.waits import Waits, waits
from asyncflow.config.root import RunConfig
from asyncflow.config.rules import samplers
from asyncflow.config.rules.paths import import_paths
from asyncflow.flow.core import core_config


class Explanation(msgspec.Struct, frozen=True):
    """What `asyncflow explain --json` prints. None means not known before the run, never 0."""

    name: str
    length: Length
    admission: Admission
    processes: Processes
    memory: Memory
    storage: Storage
    waits: Waits
    old_logprobs: OldLogprobs
    schedule: Schedule
    bit_for_bit: Bits
    refused: list[str]  # why `train` would not start it; empty: it would


def explain(config: RunConfig) -> Explanation:
    """Of a loaded, checked configuration. Raises SettingError for code that is named and not there. Reads source and model files, starts nothing."""
    import_paths(config)
    samplers.own(config)
    core = core_config(config)
    topic = core.topics[0]
    return Explanation(
        name=config.run.name,
        length=length(config, topic),
        admission=admission(topic),
        processes=processes(config),
        memory=memory(config, topic),
        storage=storage(config, topic),
        waits=waits(config, core, topic),
        old_logprobs=old_logprobs(config),
        schedule=schedule(config, core),
        bit_for_bit=bits(config),
        refused=refusals(config),
    )
