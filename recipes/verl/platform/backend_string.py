"""verl asks torch for "cpu:gloo,DEVICE:BACKEND"; where the device is the CPU, torch refuses the same device twice."""

from __future__ import annotations

from types import ModuleType

WAITS_FOR = "verl.utils.distributed"


def mend(distributed: ModuleType) -> None:
    initialize = distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        initialize(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
