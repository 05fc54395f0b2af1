"""A first model made by imitation, so that reinforcement learning has something to improve: seeded, cached, stopped at a measured accuracy.

`prepare` is what a recipe names under `models.policy.prepare`. The teacher is the task's (`Task.demonstration`), and it is not a perfect one.
"""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import xxhash
from transformers import Qwen2ForCausalLM

from asyncflow.contracts.weights import WeightsId
from asyncflow.data.demonstrations import demonstration_rows, take_rows
from asyncflow.data.split import SALT, SHARES
from asyncflow.data.task import Task, load_task
from asyncflow.engines.greedy import accuracy, make_embedded
from asyncflow.engines.model import ModelShape, build_model, hf_tensors
from asyncflow.engines.train.checkpoint import save_hf
from asyncflow.engines.train.log_probs import response_log_probs

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

RECORD = "warm_start.json"
FORMAT = 1  # part of the cache's key: raise it when this file changes what it makes


class WarmStartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`models.<name>.options`: the architecture and how it is taught."""

    shape: dict[str, Any] = {}  # fields of `engines.model.ModelShape`; vocabulary and special ids come from the task's tokenizer
    corpus: int = 8192  # different demonstrations
    batch: int = 64  # demonstrations a step
    learning_rate: float = 3e-3  # peak
    rise_steps: int = 50  # over which the learning rate rises from 0
    fall_steps: int = 250  # over which it falls again, linearly, to a tenth; then it stays there
    least_steps: int = 250  # before the first check
    most_steps: int = 500  # without success the warm start fails
    check_every: int = 25  # steps between two checks
    check_items: int = 256  # validation questions a check, different from all that are trained on or held out
    sampled: float = 0.3  # and a sampled accuracy of this or more: the skill is there, though not yet what the model mostly does
    greedy: tuple[float, float] = (0.22, 0.45)  # the first check with a greedy accuracy in this range


class WarmStartRecord(msgspec.Struct, frozen=True):
    """What was reached; written beside the model as warm_start.json."""

    accuracy: float  # greedy, on the validation split
    sampled_accuracy: float  # the same at temperature 1
    loss: float  # cross-entropy a token of the last batch, in nats
    steps: int
    seconds: float
    parameters: int
    seed: int


def prepare(config: RunConfig, model: str) -> Path:
    """Folder of Hugging Face files (model, tokenizer, warm_start.json) for `models.<model>`, from the cache or made now.

    Raises msgspec.ValidationError for unknown options, RuntimeError when no check found the wanted accuracies.
    """
    settings = msgspec.convert(config.models[model].options, WarmStartSettings)
    folder = Path(config.run.cache) / f"warm-start-{cache_key(config, settings)}"
    if not (folder / RECORD).is_file():
        task = load_task(config)
        network, record = teach(config, settings, task)
        _write(folder, network, task, record)
    return folder


def cache_key(config: RunConfig, settings: WarmStartSettings) -> str:
    """Hash of everything that the result depends on, splits and library versions included."""
    libraries = [version(name) for name in ("torch", "transformers", "reasoning-gym")]
    widths = (config.rollout.prompt_width, config.rollout.response_width, config.rollout.cache_width)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode((FORMAT, SALT, SHARES, settings, config.task, widths, config.run.seed, libraries)))


def teach(config: RunConfig, settings: WarmStartSettings, task: Task) -> tuple[Qwen2ForCausalLM, WarmStartRecord]:
    """Supervised steps until a check finds the accuracies that are wanted."""
    start_s = time.monotonic()
    network = build_model(model_shape(task, settings, config.run.seed))
    questions = task.distinct("validation", settings.check_items)
    engine = make_embedded(copy.deepcopy(network), config)
    engine.start()
    least, most = settings.greedy
    greedy = sampled = float("nan")
    for step, loss in enumerate(_steps(network, config, settings, task), start=1):
        if step < settings.least_steps or step % settings.check_every:
            continue
        engine.load_weights(WeightsId("warm_start", 0, step), hf_tensors(network))
        greedy, sampled = (accuracy(engine, task, questions, config.rollout.response_width, temperature) for temperature in (0.0, 1.0))
        if least <= greedy <= most and sampled >= settings.sampled:
            parameters = sum(parameter.numel() for parameter in network.parameters())
            return network, WarmStartRecord(greedy, sampled, loss, step, time.monotonic() - start_s, parameters, config.run.seed)
    raise RuntimeError(
        f"warm start: after most_steps = {settings.most_steps} accuracy is {greedy:.3f} greedily and {sampled:.3f} by sampling, and no check "
        f"found greedy in [{least}, {most}] and sampled >= {settings.sampled}; no model was written; change the teacher (task.options) or most_steps"
    )


def model_shape(task: Task, settings: WarmStartSettings, seed: int) -> ModelShape:
    tokenizer = task.tokenizer
    given = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "seed": seed,
    }
    return msgspec.convert(given | settings.shape, ModelShape)


def _steps(network: Qwen2ForCausalLM, config: RunConfig, settings: WarmStartSettings, task: Task) -> Iterator[float]:
    """One optimizer step an item; yields its loss. Batches are drawn without replacement, epoch after epoch, by the run's seed."""
    rows = demonstration_rows(task, settings.corpus, config.rollout.prompt_width, config.rollout.response_width)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    random = torch.Generator().manual_seed(config.run.seed)
    order = torch.zeros(0, dtype=torch.int64)
    for step in range(settings.most_steps):
        if len(order) < settings.batch:
            order = torch.randperm(settings.corpus, generator=random)
        batch, order = take_rows(rows, order[: settings.batch]), order[settings.batch :]
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * min(1.0, (step + 1) / settings.rise_steps) * max(0.1, 1.0 - step / settings.fall_steps)
        log_probs, _ = response_log_probs(network, batch)
        loss = -log_probs.sum() / batch.response_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        yield float(loss.detach())


def _write(folder: Path, network: Qwen2ForCausalLM, task: Task, record: WarmStartRecord) -> None:
    """Into a folder of our own first: the cache never shows a half-written model, and of two makers the first one wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    own = folder.with_name(f"{folder.name}.{os.getpid()}")
    save_hf(network, own)
    task.tokenizer.save_pretrained(own)
    (own / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    try:
        own.rename(folder)
    except OSError:
        shutil.rmtree(own)
        if not (folder / RECORD).is_file():
            raise
