"""verl's engines as its own workers build them, in a process of ours: one rank of a group that is there before."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

GROUP_TIMEOUT_S = 60.0  # of a collective: a rank that is gone is noticed then at the latest
TRAIN, REF = "actor", "ref"  # parts of actor_rollout_ref


class Built(NamedTuple):
    engine: Any  # verl.workers.engine.BaseEngine, initialised
    actor: Any  # verl.workers.config.ActorConfig: settings of the loss
    given: dict[str, Any]  # what verl's engine reads beside the columns of a batch
    most_rows: int | None  # rows of a micro-batch; None: cut by tokens


def join_group(rank: int = 0, ranks: int = 1, store: torch.distributed.Store | None = None) -> None:
    """The world of this process, before an engine is built. `store`: shared by all ranks; None: of this process alone."""
    import torch
    from verl.utils.device import get_device_name, get_nccl_backend, get_torch_device

    if torch.distributed.is_initialized():
        return
    device = get_device_name()
    backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:{get_nccl_backend()}"
    if device != "cpu":
        get_torch_device().set_device(rank)  # of those that this process may see
    store = torch.distributed.HashStore() if store is None else store
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=GROUP_TIMEOUT_S))


def build_engine(conf: DictConfig, model_dir: Path, part: str = TRAIN, *, forward_only: bool, steps: int = 0) -> Built:
    """`part`: whose settings of sharding and of micro-batches. `steps`: optimizer steps of the run, for the course of the learning rate."""
    from omegaconf import OmegaConf, open_dict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine import EngineRegistry

    settings = conf.actor_rollout_ref
    tree = OmegaConf.create(OmegaConf.to_container(settings.actor, resolve=True))
    with open_dict(tree):
        if part == REF:
            tree.fsdp_config = settings.ref.fsdp_config
        tree.fsdp_config.forward_only = forward_only
        tree.optim.total_training_steps = steps
    actor = omega_conf_to_dataclass(tree)
    model = omega_conf_to_dataclass(OmegaConf.merge(settings.model, {"path": str(model_dir)}))
    model.model_type = "language_model"
    engine_config = actor.engine
    engine_config.use_remove_padding = settings.model.use_remove_padding
    engine_config.use_fused_kernels = settings.model.use_fused_kernels
    engine = EngineRegistry.new(
        model_type=model.model_type,
        backend=engine_config.strategy,
        model_config=model,
        engine_config=engine_config,
        optimizer_config=None if forward_only else actor.optim,
        checkpoint_config=actor.checkpoint,
    )
    engine.initialize()
    dynamic, most_rows, most_tokens = _cut(settings, part, forward_only)
    given = {
        "temperature": float(settings.rollout.temperature),
        "use_remove_padding": settings.model.use_remove_padding,
        "use_fused_kernels": settings.model.use_fused_kernels,
        "pad_token_id": model.tokenizer.pad_token_id or 0,
        "use_dynamic_bsz": dynamic,
        **({"max_token_len_per_gpu": most_tokens} if dynamic else {}),
        "calculate_entropy": not forward_only and bool(actor.calculate_entropy or actor.entropy_coeff),
    }
    return Built(engine, actor, given, None if dynamic else most_rows)


def _cut(settings: DictConfig, part: str, forward_only: bool) -> tuple[bool, int, int]:
    """(by tokens?, rows, tokens) of a micro-batch, as verl's own workers read them."""
    if not forward_only:
        actor = settings.actor
        return actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu
    source = settings.ref if part == REF else settings.rollout
    return source.log_prob_use_dynamic_bsz, source.log_prob_micro_batch_size_per_gpu, source.log_prob_max_token_len_per_gpu


def names_of_tied(module: torch.nn.Module) -> frozenset[str]:
    """Further names of parameters that have one already: published once, under the first."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return frozenset(every - {name for name, _ in module.named_parameters()})


def load_whole(module: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]], label: str) -> None:
    """Copy a complete set under Hugging Face names into an engine of one rank, or raise ValueError and leave every parameter as it was."""
    import torch
    from torch.distributed.tensor import DTensor

    own = {name: parameter.to_local() if isinstance(parameter, DTensor) else parameter for name, parameter in module.named_parameters()}
    tied = names_of_tied(module)
    staged: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if name in tied:
            continue
        if name not in own or own[name].shape != tensor.shape:
            have = list(own[name].shape) if name in own else "no such tensor"
            raise ValueError(f"weights {label} are refused: {name!r} is {list(tensor.shape)}, the model has {have}; the old ones go on serving")
        staged[name] = tensor.detach().to(own[name].dtype, copy=True)  # the iterator may reuse its buffer
    if missing := sorted(own.keys() - staged.keys()):
        raise ValueError(f"weights {label} are refused: {len(missing)} tensors are missing, the first is {missing[0]!r}; the old ones go on serving")
    with torch.no_grad():
        for name, tensor in staged.items():
            own[name].copy_(tensor)
