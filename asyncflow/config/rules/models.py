"""Rules on models: each has weights to start from, in a type that there is."""

from __future__ import annotations

from asyncflow.config.errors import SettingError, closest, did_you_mean
from asyncflow.config.models import COMPUTED, DTYPES, ModelSettings
from asyncflow.config.root import POLICY, RunConfig

ORIGINS = ("path", "prepare", "same_as")  # of which exactly one is given


def models(config: RunConfig) -> None:
    if POLICY not in config.models:
        rule, consequence = "it is missing, and it is the model that is trained", "there would be nothing to train"
        fix = [f"++models.{POLICY}.path=DIRECTORY"]
        raise SettingError(f"models.{POLICY}", None, rule=rule, consequence=consequence, fix=fix, advice=f"or models.{POLICY}.prepare")
    for name, model in config.models.items():
        _origin(name, model)
        if model.dtype not in DTYPES:
            rule = f"it must be one of {', '.join(DTYPES)}, {did_you_mean(model.dtype, DTYPES)}"
            fix = [f"models.{name}.dtype={closest(model.dtype, DTYPES) or COMPUTED}"]
            raise SettingError(f"models.{name}.dtype", model.dtype, rule=rule, consequence="no model could be made of it", fix=fix)
        if model.same_as is not None:
            _same_as(config, name, model.same_as)


def _origin(name: str, model: ModelSettings) -> None:
    given = [key for key in ORIGINS if getattr(model, key) is not None]
    if len(given) == 1:
        return
    if given:
        key, value = f"models.{name}.{given[1]}", getattr(model, given[1])
        rule = f"{' and '.join(given)} are given, and exactly one of {', '.join(ORIGINS)} says where its first weights come from"
        advice = f"or set {given[0]} to null"
        raise SettingError(key, value, rule=rule, consequence="it would have two beginnings", fix=[f"{key}=null"], advice=advice)
    rule = f"none of {', '.join(ORIGINS)} is given, and exactly one of them says where its first weights come from"
    fix = [f"models.{name}.path=DIRECTORY"]
    advice = "with a directory of ordinary Hugging Face files (config.json, safetensors)"
    raise SettingError(f"models.{name}.path", None, rule=rule, consequence="there would be no weights to start from", fix=fix, advice=advice)


def _same_as(config: RunConfig, name: str, other: str) -> None:
    """The one it names has files of its own: a chain would have to be followed, and may be a circle."""
    own = [known for known, model in config.models.items() if known != name and model.same_as is None]
    if other in own:
        return
    near = closest(other, own) or (POLICY if POLICY in own else None)
    rule = f"it must name another model that has a path or prepare of its own, {did_you_mean(other, own)}"
    consequence = "there would be no weights to start from"
    fix = [] if near is None else [f"models.{name}.same_as={near}"]
    raise SettingError(f"models.{name}.same_as", other, rule=rule, consequence=consequence, fix=fix, advice="" if fix else f"give models.{name}.path")
