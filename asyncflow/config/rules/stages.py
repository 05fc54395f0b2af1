"""Rules on stages and their columns: everything that is read is written by somebody, and nobody waits for himself."""

from __future__ import annotations

import numpy as np

from asyncflow.config.errors import SettingError, as_value, closest, did_you_mean
from asyncflow.config.root import RunConfig
from asyncflow.config.stages import LOOP_STAGES, SOURCE_COLUMNS, StageSettings, default_stages
from asyncflow.flow.bytes import EXTRA_DTYPES, element_bytes

NUMPY = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")


def stage_entries(config: RunConfig) -> None:
    for name in LOOP_STAGES:
        if name not in config.stages:
            rule, consequence = "it is missing, and every run generates and trains", "one of the two would not happen"
            advice = f"remove the line or the override that sets stages.{name} to null"
            raise SettingError(f"stages.{name}", None, rule=rule, consequence=consequence, advice=advice)
    for name, stage in config.stages.items():
        if stage.terminal != (name == "train"):
            key, right = f"stages.{name}.terminal", as_value(name == "train")
            rule = f"`train` commits and no other stage does in this version, so it must be {right}"
            consequence = "the model's clock would have two hands, or none"
            raise SettingError(key, stage.terminal, rule=rule, consequence=consequence, fix=[f"{key}={right}"])
        if stage.terminal and stage.unit != "group":
            key, consequence = f"stages.{name}.unit", "a batch counts groups, and the queue would refuse the topic"
            raise SettingError(key, stage.unit, rule="it must be 'group'", consequence=consequence, fix=[f"{key}=group"])
        _refuse_model(config, name, stage.model)


def _refuse_model(config: RunConfig, name: str, model: str | None) -> None:
    if model is None or model in config.models:
        return
    near = closest(model, config.models)
    raise SettingError(
        f"stages.{name}.model",
        model,
        rule=f"no such model, {did_you_mean(model, config.models)}",
        consequence="the stage would have no weights to compute with",
        fix=[f"stages.{name}.model={near or 'null'}"],
        advice="" if near else f"or add models.{model}",
    )


def stage_columns(config: RunConfig) -> None:
    producers = {column.name: column.producer for column in SOURCE_COLUMNS}
    for name, stage in config.stages.items():
        for column, settings in stage.outputs.items():
            _refuse_dtype(f"stages.{name}.outputs.{column}.dtype", settings.dtype)
            if column in producers:
                key = f"stages.{name}.outputs.{column}"
                rule = f"{producers[column]!r} writes that column too, and a column has one producer"
                advice = f"give it a name of its own, e.g. stages.{name}.outputs.{name}_{column}"
                raise SettingError(key, rule=rule, consequence="one of the two would be refused by the queue", advice=advice, fix=[f"~{key}"])
            producers[column] = name
    for name in config.stages:
        _refuse_inputs(config, name, producers)


def _refuse_inputs(config: RunConfig, name: str, producers: dict[str, str]) -> None:
    """Every input is somebody's output."""
    inputs = config.stages[name].inputs
    for column in inputs:
        if column in producers:
            continue
        near = closest(column, (known for known in producers if known not in inputs))
        mended = [near if other == column else other for other in inputs if other != column or near is not None]
        raise SettingError(
            f"stages.{name}.inputs",
            inputs,
            rule=f"no stage writes {column!r}, {did_you_mean(column, producers)}",
            consequence=f"{name!r} would wait for it for ever",
            fix=[f"stages.{name}.inputs={as_value(mended)}"],
            advice=f"or add {column!r} to the outputs of the stage that computes it",
        )


def _refuse_dtype(key: str, dtype: str) -> None:
    try:
        element_bytes(dtype)
    except TypeError:
        known = (*NUMPY, *EXTRA_DTYPES)
        near = closest(dtype, known)
        rule = f"no such type, {did_you_mean(dtype, known)}"
        consequence = "the bytes of the column could not be counted or read"
        raise SettingError(key, dtype, rule=rule, consequence=consequence, fix=[f"{key}={near or 'float32'}"]) from None
    if dtype not in EXTRA_DTYPES and np.dtype(dtype).kind not in "biuf":
        consequence = "its bytes could not travel unconverted"
        raise SettingError(key, dtype, rule="it must be a type of numbers", consequence=consequence, fix=[f"{key}=float32"])


def stage_order(config: RunConfig) -> None:
    """No stage may wait for itself, through others or directly."""
    producer = {column: name for name, stage in config.stages.items() for column in stage.outputs}
    waits = {name: [producer[column] for column in stage.inputs if column in producer] for name, stage in config.stages.items()}
    done: set[str] = set()
    while ready := [name for name in waits if name not in done and done.issuperset(waits[name])]:
        done.update(ready)
    if len(done) < len(waits):
        raise _circular(config, producer, _circle({name: [n for n in waits[name] if n not in done] for name in waits if name not in done}))


def _circle(waits: dict[str, list[str]]) -> list[str]:
    """Stages of one circle, each waiting for the next and the last for the first: whoever follows the waits must come back."""
    path = [next(iter(waits))]
    while (following := waits[path[-1]][0]) not in path:
        path.append(following)
    return path[path.index(following) :]


def _circular(config: RunConfig, producer: dict[str, str], circle: list[str]) -> SettingError:
    """Break it at the stage that reads something new to it, compared with the defaults; else at the first."""
    defaults = default_stages()
    reads = {name: [column for column in config.stages[name].inputs if producer.get(column) in circle] for name in circle}
    changed = (name for name in circle if name not in defaults or set(reads[name]) - set(defaults[name].inputs))
    first = next(changed, circle[0])
    left = [column for column in config.stages[first].inputs if column not in reads[first]]
    waits = ", ".join(f"{name} for {' and '.join(reads[name])}" for name in circle)
    return SettingError(
        f"stages.{first}.inputs",
        config.stages[first].inputs,
        rule=f"no stage may wait for itself, but in the circle {' → '.join([*circle, circle[0]])} each waits for the next ({waits})",
        consequence="none of them would ever get a row",
        fix=[f"stages.{first}.inputs={as_value(left)}"],
        advice="or break the circle at another of them",
    )


def lease_sizes(config: RunConfig) -> None:
    """What leases of `at_least` units leave over waits for later groups, and none are admitted while the trainer waits for what is left over."""
    for name, stage in config.stages.items():
        key = f"stages.{name}.at_least"
        if stage.at_least > 1 and name in LOOP_STAGES:
            rule, consequence = f"{name} has a loop of its own, which takes what it has room for", "it would be ignored"
            raise SettingError(key, stage.at_least, rule=rule, consequence=consequence, fix=[f"{key}=1"])
        if stage.at_least > stage.limit:
            rule, consequence = f"it must be at most stages.{name}.limit = {stage.limit}", "no lease could hold so many"
            raise SettingError(key, stage.at_least, rule=rule, consequence=consequence, fix=[f"stages.{name}.limit={stage.at_least}"])
        _refuse_leftover(config, name, stage)


def _refuse_leftover(config: RunConfig, name: str, stage: StageSettings) -> None:
    rows = 1 if stage.unit == "group" else config.rollout.samples_per_prompt
    batch = config.batch_size * rows
    exact = stage.at_least == stage.limit and batch % stage.at_least == 0
    if exact or config.staleness is None or stage.at_least <= config.staleness * batch + 1:
        return
    key, units = f"stages.{name}.at_least", "groups" if stage.unit == "group" else "rows"
    raise SettingError(
        key,
        stage.at_least,
        rule=f"it must be at most staleness × {batch} + 1 = {config.staleness * batch + 1} {units}, or divide {batch} and be equal to limit",
        consequence="what a lease leaves over would wait for groups that are admitted only after it is trained: 30 s in every batch",
        fix=[f"{key}={batch}", f"stages.{name}.limit={batch}"],
    )


def old_logprobs(config: RunConfig) -> None:
    """Each source of `old_logprobs` needs its column among the trainer's inputs."""
    inputs = config.stages["train"].inputs
    source = config.algorithm.old_logprobs
    needed = {"forward": "old_logprobs", "behaviour": "rollout_logprobs"}.get(source)
    if needed is not None and needed not in inputs:
        raise SettingError(
            "algorithm.old_logprobs",
            source,
            rule=f"it reads the column {needed!r}, which stages.train.inputs does not name",
            consequence="the ratio would have no denominator",
            fix=["algorithm.old_logprobs=recompute"],
            advice=f"or add {needed!r} to stages.train.inputs",
        )
    if config.algorithm.kl_coef > 0 and "ref_logprobs" not in inputs:
        raise SettingError(
            "algorithm.kl_coef",
            config.algorithm.kl_coef,
            rule="above 0 it needs the column 'ref_logprobs' among stages.train.inputs",
            consequence="there would be no reference to stay near",
            fix=["algorithm.kl_coef=0"],
            advice="or add 'ref_logprobs' to stages.train.inputs",
        )
