"""verl's FSDP2 engines for the device "cpu".

Two things differ from a device's. A micro-batch is copied: `.to(device)` is a copy everywhere else, so code behind it may write into it (a loss of
one's own does); on a CPU it would write into the batch of the caller, or into memory that a queue has mapped read-only, and end with SIGSEGV. And
what is offloaded for an engine that only infers is not pinned: without an accelerator torch refuses to.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

WAITS_FOR = "verl.workers.engine.fsdp.transformer_impl"


def mend(implementation: ModuleType) -> None:
    _unpin(implementation)
    for model_type, stock in (
        ("language_model", implementation.FSDPEngineWithLMHead),
        ("value_model", implementation.FSDPEngineWithValueHead),
    ):
        implementation.EngineRegistry.register(model_type=model_type, backend="fsdp2", device="cpu")(_on_own_copies(stock))


def _on_own_copies(stock: type) -> type:
    class OnCpu(stock):  # type: ignore[misc]  # the base is known when verl is imported
        def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            return super().forward_step(micro_batch.clone(), loss_function, forward_only)

    OnCpu.__name__ = OnCpu.__qualname__ = f"{stock.__name__}OnCpu"
    return OnCpu


def _unpin(implementation: ModuleType) -> None:
    policy = implementation.CPUOffloadPolicy
    implementation.CPUOffloadPolicy = lambda pin_memory=True: policy(pin_memory=False)
