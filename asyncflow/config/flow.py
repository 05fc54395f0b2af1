"""Settings of flow control beside `staleness` and `batch_size`, which stand at the top of the YAML."""

from __future__ import annotations

from typing import Literal

from asyncflow.config.settings import Settings


class FlowSettings(Settings, frozen=True):
    """What happens at the bound, and the bound in bytes."""

    policy: Literal["wait", "drop"] = "wait"  # wait: nobody overtakes, nothing is lost; drop: too old groups are dropped and replaced.
    requeue: bool = False  # With drop: hand the dropped prompt out again instead of the source's next one.
    budget_bytes: int = 1 << 28  # Most bytes of admitted groups, each counted at its worst case; gates admission only.
