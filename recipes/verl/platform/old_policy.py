"""verl keeps the old policy by `.cpu()`. On a CPU that copies nothing: after the next step the old policy is the new one, every ratio is 1, nothing
is clipped, and nobody is told. So what was kept is copied."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

WAITS_FOR = "verl.utils.fsdp_utils"


def mend(fsdp_utils: ModuleType) -> None:
    save = fsdp_utils.fsdp2_sharded_save_to_cpu

    def fsdp2_sharded_save_to_cpu(model: torch.nn.Module) -> tuple[dict[str, tuple[torch.Tensor, Any]], Any]:
        kept, spec = save(model)
        return {name: (tensor.clone(), own_spec) for name, (tensor, own_spec) in kept.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = fsdp2_sharded_save_to_cpu
