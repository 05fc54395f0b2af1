"""From plain data (YAML, JSON) to a typed `RunConfig`, with errors that a user can act on."""

from __future__ import annotations

import math
import types
import typing
from typing import Any

import msgspec

from asyncflow.config.errors import ConfigError, did_you_mean
from asyncflow.config.root import RunConfig

REMOVABLE = ("stages", "resources", "models")  # a null entry in these removes the default of that name
WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null", dict: "a mapping"}


def typed(plain: dict[str, Any]) -> RunConfig:
    """Convert plain data. Raises ConfigError for an unknown or missing key or a value of the wrong type, naming its path."""
    plain = {key: _without_null(value) if key in REMOVABLE else value for key, value in plain.items()}
    refuse_wrong(plain, RunConfig)
    return msgspec.convert(plain, RunConfig)


def _without_null(entries: Any) -> Any:
    return {key: value for key, value in entries.items() if value is not None} if isinstance(entries, dict) else entries


def refuse_wrong(plain: Any, kind: Any, path: str = "") -> None:
    """Walk plain data beside the type it is meant for, and refuse the first thing that does not fit."""
    struct = _struct_of(kind)
    if struct is not None and isinstance(plain, dict):
        refuse_unknown(plain, struct, path)
        _refuse_missing(plain, struct, path)
        hints = typing.get_type_hints(struct)
        for key, value in plain.items():
            refuse_wrong(value, hints[key], _join(path, key))
    elif typing.get_origin(kind) is dict and isinstance(plain, dict):
        for key, value in plain.items():
            refuse_wrong(value, typing.get_args(kind)[1], _join(path, key))
    else:
        _refuse_value(plain, kind, path)


def refuse_unknown(plain: dict[str, Any], struct: type, path: str) -> None:
    """Refuse keys that the record does not have."""
    known = typing.get_type_hints(struct)
    for key in plain:
        if key not in known:
            where = _join(path, key)
            raise ConfigError(f"{where}: there is no such setting, {did_you_mean(str(key), known)} (nothing was started; see docs/configuration.md)")


def unknown_override(key: str) -> None:
    """Refuse a dotted key of the command line that leads nowhere. Entries of mappings (`stages.mine`) are free to be new."""
    kind: Any = RunConfig
    path = ""
    for part in key.split("."):
        struct = _struct_of(kind)
        if struct is not None:
            refuse_unknown({part: None}, struct, path)
            kind = typing.get_type_hints(struct)[part]
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        else:
            return  # inside free options: their owner checks them
        path = _join(path, part)


def _refuse_missing(plain: dict[str, Any], struct: type, path: str) -> None:
    for setting in msgspec.structs.fields(struct):
        if setting.required and setting.name not in plain:
            raise ConfigError(
                f"{_join(path, setting.name)}: it is missing, and it has no default (nothing was started). "
                f"Fix: {_join(path, setting.name)}=<{in_words(typing.get_type_hints(struct)[setting.name])}>"
            )


def _refuse_value(value: Any, kind: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} = {value}: it must be finite; workers receive it as JSON, which has no other. Fix: {path}=<a finite number>")
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise ConfigError(f"{path} = {value!r}: it must be {in_words(kind)} (nothing was started). Fix: {path}=<{in_words(kind)}>") from None


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _struct_of(kind: Any) -> type | None:
    """The settings record in a type such as `X` or `X | None`."""
    candidates = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, msgspec.Struct)), None)


def in_words(kind: Any) -> str:
    """A type as a user reads it: "an integer or null", "one of 'wait', 'drop'"."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(arg) for arg in args)
    if origin is typing.Literal:
        return repr(args[0]) if len(args) == 1 else "one of " + ", ".join(map(repr, args))
    if origin is tuple:
        count = "" if args[-1] is ... else f" of length {len(args)}"
        return f"a list{count}, each {in_words(args[0])}"
    return WORDS.get(origin or kind, "a mapping")
