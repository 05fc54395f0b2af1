"""Rules between settings, checked before anything is started; each names key, value, rule, consequence and fix."""

from __future__ import annotations

from collections.abc import Callable

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.resources import LOOP_ROLES, RESERVED_ROLES, ROLE_OF_STAGE
from asyncflow.config.rollout import KV_MULTIPLE, LEAST_SLOTS
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.config.stages import LOOP_STAGES, SOURCE_COLUMNS
from asyncflow.flow.bytes import EXTRA_DTYPES, element_bytes, group_bytes


def check(config: RunConfig) -> None:
    """Raises ConfigError for the first rule that is broken. Says nothing on whether this machine can run it: see `check_runnable`."""
    for rule in RULES:
        rule(config)


def check_runnable(config: RunConfig) -> None:
    """Refuse what is well formed but not built yet. Raises ConfigError."""
    workers = config.resources["trainer"].workers
    if workers > 1:
        raise ConfigError(f"resources.trainer.workers = {workers}: training on several ranks is not there yet; set it to 1")
    publishers = config.resources["publisher"].workers
    if publishers != 1:
        raise ConfigError(f"resources.publisher.workers = {publishers}: there is one publisher a trained model; set it to 1")
    if len(config.stages["train"].options.get("models", [])) > 1:
        raise ConfigError("stages.train.options.models: training several models in one run is not there yet; name one")


def _length(config: RunConfig) -> None:
    steps, groups = config.run.steps, config.run.total_groups
    if (steps is None) == (groups is None):
        raise ConfigError(
            f"run.steps = {steps} and run.total_groups = {groups}: exactly one of them says how long the run is, the other is null; "
            f"without that the run has no end. Fix: run.steps=100 run.total_groups=null"
        )
    _at_least("run.steps", steps, 1)
    _at_least("run.total_groups", groups, 1)


def _numbers(config: RunConfig) -> None:
    _at_least("staleness", config.staleness, 0)
    _at_least("batch_size", config.batch_size, 1)
    _at_least("rollout.samples_per_prompt", config.rollout.samples_per_prompt, 1)
    _at_least("rollout.prompt_width", config.rollout.prompt_width, 1)
    _at_least("rollout.response_width", config.rollout.response_width, 1)
    _at_least("rollout.pull_groups", config.rollout.pull_groups, 1)
    _at_least("algorithm.micro_batch_groups", config.algorithm.micro_batch_groups, 1)
    _at_least("evaluation.every", config.evaluation.every, 1)
    _at_least("evaluation.items", config.evaluation.items, 1)
    _at_least("weights.export_every", config.weights.export_every, 1)
    _at_least("weights.bucket_bytes", config.weights.bucket_bytes, 4096)
    _at_least("weights.cache_slots", config.weights.cache_slots, 1)
    _at_least("queue.shards", config.queue.shards, 1)
    _at_least("limits.restarts", config.limits.restarts, 0)
    _at_least("data.put_batch", config.data.put_batch, 1)
    _at_least("data.prompts_bound", config.data.prompts_bound, 1)
    if config.rollout.temperature <= 0:
        raise ConfigError(
            f"rollout.temperature = {config.rollout.temperature}: sampling for training needs a temperature above 0; at 0 all samples of a "
            f"group are equal and nothing is learned. Fix: rollout.temperature=1.0 (evaluation is greedy anyway)"
        )
    if not 0 < config.weights.group_timeout_s <= 10:
        raise ConfigError(
            f"weights.group_timeout_s = {config.weights.group_timeout_s:g}: it must be above 0 and at most 10, for a killed peer is noticed only "
            f"then. Fix: weights.group_timeout_s=10"
        )


def _at_least(key: str, value: float | None, least: int) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{key} = {value}: it must be at least {least} (nothing was started). Fix: {key}={least} or more")


def _decode_shape(config: RunConfig) -> None:
    rollout = config.rollout
    if rollout.slots < LEAST_SLOTS:
        raise ConfigError(
            f"rollout.slots = {rollout.slots}: at least {LEAST_SLOTS}; 1 to 3 rows take another matrix kernel, whose bits differ, so staleness 0 "
            f"would not equal the synchronous loop. Fix: rollout.slots={LEAST_SLOTS}"
        )
    width, need = rollout.cache_width, rollout.prompt_width + rollout.response_width
    if width % KV_MULTIPLE or width < need:
        raise ConfigError(
            f"rollout.kv_width = {width}: a multiple of {KV_MULTIPLE} that holds prompt_width + response_width = {need}; other widths differ in "
            f"bits or cut sequences off. Fix: rollout.kv_width=null, which takes {-(-need // KV_MULTIPLE) * KV_MULTIPLE}"
        )


def _byte_budget(config: RunConfig) -> None:
    worst = group_bytes(config)
    need = config.batch_size * worst
    if config.flow.budget_bytes < need:
        raise ConfigError(
            f"flow.budget_bytes = {config.flow.budget_bytes}: below batch_size × worst-case group = {config.batch_size} × {worst} = {need}; no batch "
            f"could ever fill and the run would stand still. Fix: flow.budget_bytes={need} or more"
        )


def _models(config: RunConfig) -> None:
    if POLICY not in config.models:
        raise ConfigError(f"models.{POLICY}: it is missing, and it is the model that is trained. Fix: give models.{POLICY}.path or .prepare")
    for name, model in config.models.items():
        given = [key for key in ("path", "prepare", "same_as") if getattr(model, key) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"models.{name}: {' and '.join(given) or 'none of path, prepare, same_as'} given; exactly one says where its first weights come "
                f"from. Fix: models.{name}.path=DIRECTORY for ordinary Hugging Face files"
            )
        if model.same_as is not None and (model.same_as not in config.models or model.same_as == name):
            raise ConfigError(f"models.{name}.same_as = {model.same_as!r}: no other model of that name, {did_you_mean(model.same_as, config.models)}")


def _stage_columns(config: RunConfig) -> None:
    producers = {column.name: column.producer for column in SOURCE_COLUMNS}
    for name, stage in config.stages.items():
        for column, settings in stage.outputs.items():
            _known_dtype(f"stages.{name}.outputs.{column}.dtype", settings.dtype)
            if column in producers:
                raise ConfigError(f"stages.{name}.outputs.{column}: {producers[column]!r} writes that column too; one producer a column. Rename one")
            producers[column] = name
    for name, stage in config.stages.items():
        for column in stage.inputs:
            if column not in producers:
                raise ConfigError(
                    f"stages.{name}.inputs names {column!r}: no stage writes it, so {name!r} would wait for ever; {did_you_mean(column, producers)}"
                )


def _known_dtype(key: str, dtype: str) -> None:
    try:
        element_bytes(dtype)
    except TypeError:
        raise ConfigError(f"{key} = {dtype!r}: no such type; a numpy name or one of {', '.join(EXTRA_DTYPES)}. Fix: {key}=float32") from None


def _stage_order(config: RunConfig) -> None:
    """No stage may wait for itself, through others or directly."""
    producer = {column: name for name, stage in config.stages.items() for column in stage.outputs}
    done: set[str] = set()
    waiting = dict.fromkeys(config.stages)
    while waiting:
        ready = [name for name in waiting if all(producer.get(column, name) in done for column in config.stages[name].inputs if column in producer)]
        if not ready:
            raise ConfigError(f"stages {', '.join(waiting)}: each waits for a column of another of them, so none ever gets a row. Break the circle")
        done.update(ready)
        waiting = {name: None for name in waiting if name not in done}


def _stage_entries(config: RunConfig) -> None:
    for name in LOOP_STAGES:
        if name not in config.stages:
            raise ConfigError(f"stages.{name}: it is missing; every run generates and trains. Fix: remove the line that sets it to null")
    terminal = [name for name, stage in config.stages.items() if stage.terminal]
    if terminal != ["train"]:
        raise ConfigError(f"stages.*.terminal is true for {terminal}: exactly `train` commits in this version. Fix: set it for train only")
    for name, stage in config.stages.items():
        if name not in LOOP_STAGES and ":" not in stage.compute:
            raise ConfigError(f'stages.{name}.compute = {stage.compute!r}: it names the code. Fix: stages.{name}.compute="package.module:name"')
        if stage.model is not None and stage.model not in config.models:
            raise ConfigError(f"stages.{name}.model = {stage.model!r}: no such model, {did_you_mean(stage.model, config.models)}")


def _old_logprobs(config: RunConfig) -> None:
    """Each source of `old_logprobs` needs its column among the trainer's inputs."""
    inputs = config.stages["train"].inputs
    source = config.algorithm.old_logprobs
    needed = {"forward": "old_logprobs", "behaviour": "rollout_logprobs"}.get(source)
    if needed is not None and needed not in inputs:
        raise ConfigError(
            f"algorithm.old_logprobs = {source!r} reads the column {needed!r}, which stages.train.inputs does not name: the ratio would have no "
            f"denominator. Fix: add it there, or take algorithm.old_logprobs=recompute"
        )
    if config.algorithm.kl_coef > 0 and "ref_logprobs" not in inputs:
        raise ConfigError(
            f"algorithm.kl_coef = {config.algorithm.kl_coef} needs the column 'ref_logprobs' among stages.train.inputs: without it there is no "
            f"reference to stay near. Fix: add it there, or set algorithm.kl_coef=0"
        )


def _roles(config: RunConfig) -> None:
    """Every stage has exactly one role that serves it, and every role has workers and something to do."""
    served: dict[str, str] = {stage: role for stage, role in ROLE_OF_STAGE.items() if role in config.resources}
    for role, settings in config.resources.items():
        _role(config, role)
        for stage in settings.stages:
            if stage in served:
                raise ConfigError(f"resources.{role}.stages names {stage!r}, which {served[stage]!r} serves too: one role a stage. Remove one")
            if stage not in config.stages:
                raise ConfigError(f"resources.{role}.stages names {stage!r}: no such stage, {did_you_mean(stage, config.stages)}")
            served[stage] = role
    for role in LOOP_ROLES:
        if role not in config.resources:
            raise ConfigError(f"resources.{role}: it is missing, and no run works without that role. Fix: resources.{role}.workers=1")
    for stage in config.stages:
        if stage not in served:
            raise ConfigError(f"stages.{stage}: no role serves it, so its rows would wait for ever. Fix: name it in `stages` of a role")


def _role(config: RunConfig, role: str) -> None:
    settings = config.resources[role]
    if role in RESERVED_ROLES:
        raise ConfigError(f"resources.{role}: the name is taken by a process of the queue or the launcher; take another (shards: queue.shards)")
    _at_least(f"resources.{role}.workers", settings.workers, 1)
    _at_least(f"resources.{role}.threads", settings.threads, 1)
    if role in LOOP_ROLES and settings.stages:
        raise ConfigError(f"resources.{role}.stages = {settings.stages}: that role has a loop of its own. Give the stages to another role")
    if role not in LOOP_ROLES and not settings.stages:
        raise ConfigError(f"resources.{role}.stages is empty: its workers would have nothing to do. Name the stages, or set resources.{role}=null")


def _devices(config: RunConfig) -> None:
    try:
        config.places()
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _wires(config: RunConfig) -> None:
    """Beyond loopback, keys are required."""
    binds = {"queue.bind": config.queue.bind, "queue.shard_bind": config.queue.shard_bind, "weights.bind": config.weights.bind}
    for key, url in binds.items():
        host = url.removeprefix("tcp://").rsplit(":", 1)[0]
        local = url.startswith("ipc://") or host.startswith("127.") or host in ("localhost", "[::1]")
        if not local and config.queue.key_file is None:
            raise ConfigError(
                f"{key} = {url!r} is not loopback: whoever reaches the port could take part in the run. Fix: `python -m transfer_queue keys DIR`, "
                f"then queue.key_file=DIR/server.key"
            )


RULES: tuple[Callable[[RunConfig], None], ...] = (
    _length,
    _numbers,
    _decode_shape,
    _models,
    _stage_entries,
    _stage_columns,
    _stage_order,
    _old_logprobs,
    _roles,
    _devices,
    _wires,
    _byte_budget,
)
