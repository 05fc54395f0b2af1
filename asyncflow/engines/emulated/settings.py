"""What every emulated part needs to know: the cost table with the split in effect, and how much faster than the modelled machine time runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from asyncflow.sizing.costs import CostTable

if TYPE_CHECKING:
    from asyncflow.config import RunConfig


class Emulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Travels as `rollout.options` in the configuration that every worker receives."""

    costs: CostTable  # `costs.split` is the split that this run has
    time_scale: float  # modelled seconds a second


def emulation_of(config: RunConfig) -> Emulation:
    """Raises msgspec.ValidationError for a run that `asyncflow.engines.emulated.config` did not make."""
    return msgspec.convert(config.rollout.options, Emulation)
