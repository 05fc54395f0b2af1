"""Rules on models, stages and their columns: everything that is read is written by somebody, and nobody waits for himself."""

from __future__ import annotations

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.models import COMPUTED, DTYPES
from asyncflow.config.root import POLICY, RunConfig
from asyncflow.config.stages import LOOP_STAGES, SOURCE_COLUMNS
from asyncflow.flow.bytes import EXTRA_DTYPES, element_bytes


def models(config: RunConfig) -> None:
    if POLICY not in config.models:
        raise ConfigError(f"models.{POLICY}: it is missing, and it is the model that is trained. Fix: give models.{POLICY}.path or .prepare")
    for name, model in config.models.items():
        given = [key for key in ("path", "prepare", "same_as") if getattr(model, key) is not None]
        if len(given) != 1:
            raise ConfigError(
                f"models.{name}: {' and '.join(given) or 'none of path, prepare, same_as'} given; exactly one says where its first weights come "
                f"from. Fix: models.{name}.path=DIRECTORY for ordinary Hugging Face files"
            )
        if model.dtype not in DTYPES:
            raise ConfigError(
                f"models.{name}.dtype = {model.dtype!r}: no such type, known are {', '.join(DTYPES)}; no model can be made of it. "
                f"Fix: models.{name}.dtype={COMPUTED}"
            )
        if model.same_as is not None and (model.same_as not in config.models or model.same_as == name):
            raise ConfigError(f"models.{name}.same_as = {model.same_as!r}: no other model of that name, {did_you_mean(model.same_as, config.models)}")


def stage_entries(config: RunConfig) -> None:
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


def stage_columns(config: RunConfig) -> None:
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


def stage_order(config: RunConfig) -> None:
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


def old_logprobs(config: RunConfig) -> None:
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
