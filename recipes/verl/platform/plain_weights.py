"""On a CPU vLLM packs the weights of a layer after the first load and throws the plain ones away. verl loads new ones into the same tensors at every
sync, so the second load fails in vLLM's process, and the driver hangs. So they stay plain: slower for large models, and loadable."""

from __future__ import annotations

from types import ModuleType

import torch

WAITS_FOR = "vllm.model_executor.layers.utils"


def mend(layers: ModuleType) -> None:
    def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    if not hasattr(layers, "dispatch_cpu_unquantized_gemm"):
        raise AttributeError(f"{layers.__name__} has no dispatch_cpu_unquantized_gemm: this vLLM packs weights elsewhere, a second load would fail")
    layers.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm
