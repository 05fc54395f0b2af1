"""How long new weights take from a trainer's device into vLLM, phase by phase: `python benchmarks/device_smoke.py --device cuda --json FILE`.

After every version vLLM's greedy answers are held against the model's own. See benchmarks/README.md; `benchmarks/cuda_smoke.sh` sets everything up.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from asyncflow.engines.model import ModelShape, build_model
from asyncflow.engines.rollout.vllm.arguments import Shape
from asyncflow.engines.rollout.vllm.settings import VllmSettings
from benchmarks.harness import Results, Row, arguments, finish, machine
from benchmarks.queue_bench.measure import value_at_most
from benchmarks.smoke_bench.way import Phases, Way, farthest, redraw

PROMPTS, PROMPT_TOKENS, TOKENS = 16, 48, 32
WIDTH = 128
QWEN_05B = ModelShape(
    vocab_size=151_936, hidden_size=896, intermediate_size=4864, layers=24, heads=14, kv_heads=2, head_dim=64, max_positions=WIDTH, eos_token_id=0
)
TOY = ModelShape(vocab_size=512, hidden_size=64, intermediate_size=96, layers=2, heads=2, head_dim=32, max_positions=WIDTH, eos_token_id=0)


class Scope(msgspec.Struct, frozen=True):
    shape: ModelShape
    device: str
    dtype: str
    versions: int
    apart: float  # most that two log-probabilities of one token may differ
    settings: VllmSettings


def scope_of(device: str, is_quick: bool) -> Scope:
    """bfloat16 on a device, where neighbouring sums differ by a hundredth."""
    dtype, apart = ("float32", 1e-2) if device == "cpu" else ("bfloat16", 0.1)
    own = {} if device == "cpu" else {"gpu_memory_utilization": 0.5}  # the trainer has memory there, too
    settings = VllmSettings(kv_cache_bytes=(64 << 20) if is_quick else (1 << 30), arguments=own)
    return Scope(TOY if is_quick else QWEN_05B, device, dtype, 3 if is_quick else 6, apart, settings)


def smoke(scope: Scope) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="asyncflow-smoke-")))
        model = build_model(scope.shape, seed=0).to(scope.device, getattr(torch, scope.dtype)).eval()
        model.config.dtype = getattr(torch, scope.dtype)
        begin = time.monotonic()
        way = Way(stack, model, folder, Shape(folder, scope.dtype, PROMPTS, WIDTH), scope.settings)
        yield Row(name="start of vLLM", value=time.monotonic() - begin, unit="s")
        draw = np.random.default_rng(0)
        prompts = [tuple(row) for row in draw.integers(1, scope.shape.vocab_size, (PROMPTS, PROMPT_TOKENS)).tolist()]
        found, apart = list[Phases](), list[float]()
        for version in range(scope.versions):
            redraw(model, version)
            found.append(way.bring(version, prompts[version]))
            print(f"version {version}: " + ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in msgspec.structs.asdict(found[-1]).items()), flush=True)
            apart += [farthest(model, prompt, answer) for prompt, answer in zip(prompts, way.greedy(prompts, TOKENS), strict=True)]
        nbytes = sum(parameter.nbytes for parameter in model.parameters())
        what = f"{nbytes / 1e9:.3g} GB on {scope.device}, slot {'pinned' if way.client.pinned else 'not pinned'}, {way.client.path}"
    yield from _rows(found, what)
    note = f"{scope.versions} versions, {PROMPTS} × {TOKENS} greedy tokens each, {scope.dtype}"
    yield value_at_most("log-probabilities, vLLM against the trainer's model", max(apart), "nats", scope.apart, note)


def _rows(found: list[Phases], what: str) -> Iterator[Row]:
    """Medians without the first version, which meets cold memory."""
    for name in Phases.__struct_fields__:
        values = [1e3 * getattr(phases, name) for phases in found]
        yield Row(name=name.replace("_", " "), value=statistics.median(values[1:]), unit="ms", note=f"{what}; the first {values[0]:.1f} ms")


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the trainer's model lies; vLLM takes the one it is built for")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no CUDA device here, so nothing was run; run it where there is one, or --device cpu --quick")
    results = Results(rows=[], machine=machine() | _device(args.device))
    for row in smoke(scope_of(args.device, args.quick)):
        results.add(row)
    finish(results, args.json)


def _device(device: str) -> dict[str, str | int | float]:
    return {} if device == "cpu" else {"device": torch.cuda.get_device_name(), "torch": torch.__version__}


if __name__ == "__main__":
    main()
