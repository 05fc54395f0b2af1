"""From verl's configuration to the run's: which worker does what, in whose terms. Needs no verl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncflow.config import RunConfig
from asyncflow.config.check import check
from asyncflow.config.errors import SettingError
from asyncflow.config.observe import WRITER_PACKAGES
from asyncflow.config.typed import typed
from asyncflow.flow.bytes import group_bytes, prompt_bytes
from recipes.verl.conf import OPTION
from recipes.verl.cuts import refuse_cuts
from recipes.verl.served import at, refuse_unserved, trackers
from recipes.verl.units import read_knobs, to_units, whole

HERE = "recipes.verl"
UNBOUNDED_BATCHES = 8  # room in batches where the staleness has no bound
ITEM_BYTES = 1 << 14  # of a prompt's row as the reward gets it
VLLM_DEFAULTS = {"enable_chunked_prefill": True, "scheduling_policy": "fcfs", "cudagraph_capture_sizes": None, "trust_remote_code": False}
COUNTS = (  # of places
    "actor_rollout_ref.rollout.nnodes",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "trainer.n_gpus_per_node",
)
KINDS = {"cpu": "cpu", "cuda": "cuda", "npu": "npu"}


def run_config(conf: Mapping[str, Any]) -> RunConfig:
    """A checked configuration. `conf`: verl's, resolved, as plain data; what stands under `asyncflow` goes over what follows from it.

    Raises ConfigError."""
    refuse_unserved(conf)
    refuse_cuts(conf)
    own = conf.get("asyncflow") or {}
    config = _with_room(typed(merged(translated(conf), own)), own)
    check(config)
    _refuse_shapes(conf, config)
    return config


def translated(conf: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of `RunConfig`, as far as verl's configuration says something of it."""
    units = to_units(read_knobs(conf))
    if units.mini_steps > 1:
        key = "trainer.v1.asyncflow.parameter_sync_step"
        rule, consequence = "one optimizer step a version is there so far", "mini-steps would be left out"
        raise SettingError(key, units.mini_steps, rule=rule, consequence=consequence, fix=[f"{key}=1"])
    rollout, data, trainer = at(conf, "actor_rollout_ref.rollout"), conf["data"], conf["trainer"]
    steps = trainer["total_training_steps"]
    if steps is None:
        key = "trainer.total_training_steps"
        rule, consequence = "it must be a number: batches span epochs here", "the run would have no end"
        raise SettingError(key, None, rule=rule, consequence=consequence, fix=[f"{key}=100"])
    every = trainer["test_freq"]
    return {
        "run": {"name": trainer["experiment_name"], "seed": 1 if data["seed"] is None else data["seed"], "steps": steps},
        "staleness": units.staleness,
        "batch_size": units.batch_size,
        "flow": {"policy": units.policy},
        "models": {
            "policy": {"path": at(conf, "actor_rollout_ref.model.path"), "dtype": rollout["dtype"]},  # that which is published and sampled with
            "ref": {"same_as": "policy", "frozen": True, "dtype": rollout["dtype"]},
        },
        "task": {"path": f"{HERE}.task:VerlTask", "options": {OPTION: {**conf}}, "item_bytes": ITEM_BYTES},
        "rollout": _rollout(rollout, data, at(conf, "actor_rollout_ref.model.trust_remote_code")),
        "algorithm": {
            "engine": f"{HERE}.train:make_training",
            "learning_rate": at(conf, "actor_rollout_ref.actor.optim.lr"),
            "micro_batch_groups": units.batch_size,
            "old_logprobs": "forward",
        },
        "evaluation": {"every": every if every and every > 0 else None},
        "observe": {"writers": sorted(trackers(trainer["logger"]) & WRITER_PACKAGES.keys()), "wandb_project": trainer["project_name"]},
        "stages": _stages(conf),
        **_places(conf),
    }


def _rollout(rollout: Mapping[str, Any], data: Mapping[str, Any], trusted: bool) -> dict[str, Any]:
    arguments = {"max_num_batched_tokens": rollout["max_num_batched_tokens"], "gpu_memory_utilization": rollout["gpu_memory_utilization"]}
    changed = {  # what vLLM does anyway is left to it
        "enable_chunked_prefill": rollout["enable_chunked_prefill"] or False,
        "scheduling_policy": rollout["scheduling_policy"],
        "cudagraph_capture_sizes": rollout["cudagraph_capture_sizes"],
        "trust_remote_code": trusted or False,
    }
    arguments |= {name: value for name, value in changed.items() if value != VLLM_DEFAULTS[name]}
    arguments |= {name: value for name, value in (at(rollout, "engine_kwargs.vllm") or {}).items() if value is not None}
    options = {"tensor_parallel": rollout["tensor_model_parallel_size"], "eager": rollout["enforce_eager"], "arguments": arguments}
    return {
        "engine": "vllm",
        "slots": rollout["max_num_seqs"],
        "prompt_width": data["max_prompt_length"],
        "response_width": data["max_response_length"],
        "temperature": float(rollout["temperature"]),
        "samples_per_prompt": rollout["n"],
        "options": {**options, "prefix_caching": bool(rollout["enable_prefix_caching"])},
    }


def _stages(conf: Mapping[str, Any]) -> dict[str, Any]:
    per_token = {"dtype": "float32", "kind": "per_token"}
    with_ref = bool(at(conf, "actor_rollout_ref.actor.use_kl_loss"))
    forward = {"compute": f"{HERE}.forward:make_forward", "inputs": ["prompt_ids", "response_ids"], "unit": "group", "limit": 8}
    per_step = ["prompt_ids", "response_ids", "rollout_logprobs", "token_versions", "finish", "rewards", "old_logprobs", "advantages"]
    rolled = {name: {"dtype": dtype, "kind": "per_token"} for name, dtype in ROLLED.items()}
    return {
        "rollout": {"inputs": ["prompt_ids", "item"], "outputs": rolled | {"finish": {"dtype": "uint8"}}, "model": "policy", "unit": "group"},
        "reward": {
            "compute": f"{HERE}.reward:make_reward",
            "inputs": ["prompt_ids", "item", "response_ids", "finish"],
            "outputs": {"rewards": {"dtype": "float32"}},
            "limit": 64,
        },
        "actor_forward": {**forward, "model": "policy", "outputs": {"old_logprobs": per_token}},
        "ref_forward": {**forward, "model": "ref", "outputs": {"ref_logprobs": per_token}} if with_ref else None,
        "advantage": {
            "compute": f"{HERE}.advantage:make_advantage",
            "inputs": ["rewards", "response_ids"],
            "outputs": {"advantages": per_token},
            "unit": "group",
        },
        "train": {"inputs": [*per_step, *(["ref_logprobs"] if with_ref else [])], "model": "policy", "unit": "group", "terminal": True},
    }


ROLLED = {"response_ids": "int32", "rollout_logprobs": "float32", "token_versions": "int32"}


def _places(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas and ranks as verl counts them; on accelerators with a device for each process."""
    for key in COUNTS:
        if not whole(value := at(conf, key)) or value < 1:
            raise SettingError(key, value, rule="it must be a whole number from 1", consequence="nobody would compute there", fix=[f"{key}=1"])
    rollout, trainer = at(conf, "actor_rollout_ref.rollout"), conf["trainer"]
    devices, each = rollout["nnodes"] * rollout["n_gpus_per_node"], rollout["tensor_model_parallel_size"]
    if devices < each or devices % each:
        key = "actor_rollout_ref.rollout.n_gpus_per_node"
        rule = f"nnodes × it = {devices} must be a multiple, from 1, of tensor_model_parallel_size = {each}: replicas have devices of their own"
        fix = ["actor_rollout_ref.rollout.nnodes=1", f"{key}={each}"]
        raise SettingError(key, rollout["n_gpus_per_node"], rule=rule, consequence="there would be no rollout", fix=fix)
    kind = trainer["device"]
    if kind not in KINDS:
        fix = ["trainer.device=cuda"]
        raise SettingError("trainer.device", kind, rule=f"it must be one of {', '.join(KINDS)}", consequence="nothing could compute", fix=fix)
    with_ref = bool(at(conf, "actor_rollout_ref.actor.use_kl_loss"))
    on_device = kind != "cpu"
    ranks = trainer["n_gpus_per_node"]
    resources: dict[str, Any] = {
        "source": {},
        "rollout": {"workers": devices // each, **({"devices": devices} if on_device else {})},
        "scorer": {"stages": ["reward", "advantage"]},
        "actor_forward": {"stages": ["actor_forward"], **({"devices": 1} if on_device else {})},
        "ref_forward": {"stages": ["ref_forward"], **({"devices": 1} if on_device else {})} if with_ref else None,
        "trainer": {**({"devices": ranks} if on_device else {})},
        "publisher": {},
    }
    total = devices + ranks + (2 if with_ref else 1)
    return {"cluster": {"kind": kind, "devices": total} if on_device else {}, "resources": resources}


def merged(base: Any, over: Any) -> Any:
    """`over` over `base`; a null removes nothing here: it is a value."""
    if not isinstance(base, Mapping) or not isinstance(over, Mapping):
        return over
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in over.items()}}


def _with_room(config: RunConfig, own: Mapping[str, Any]) -> RunConfig:
    """Room for all permits at their worst, where nobody says how much: verl has no such knob."""
    flow, queue = config.flow, config.queue
    if at(own, "flow.budget_bytes") is None:
        batches = UNBOUNDED_BATCHES if config.staleness is None else config.staleness + 1
        need = batches * config.batch_size * group_bytes(config)
        flow = msgspec.structs.replace(flow, budget_bytes=max(flow.budget_bytes, need))
    if at(own, "queue.shard_bytes") is None:
        need = flow.budget_bytes + config.data.prompts_bound * prompt_bytes(config)
        queue = msgspec.structs.replace(queue, shard_bytes=max(queue.shard_bytes, -(-need // queue.shards)))
    return msgspec.structs.replace(config, flow=flow, queue=queue)


def _refuse_shapes(conf: Mapping[str, Any], config: RunConfig) -> None:
    """Every rank gets the same number of rows: it waits for the others in each micro-batch."""
    ranks, groups = conf["trainer"]["n_gpus_per_node"], config.algorithm.micro_batch_groups
    rows = groups * config.rollout.samples_per_prompt
    if rows % ranks or config.batch_size % groups:
        key = "asyncflow.algorithm.micro_batch_groups"
        rule = f"it must divide batch_size = {config.batch_size}, and its {rows} rows must divide among trainer.n_gpus_per_node = {ranks} ranks"
        fix = [f"++{key}={config.batch_size}"]
        raise SettingError(key, groups, rule=rule, consequence="ranks would wait for micro-batches that others do not have", fix=fix)
