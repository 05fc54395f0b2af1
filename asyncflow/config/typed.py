"""From plain data (YAML, JSON) to a typed `RunConfig`, with errors that a user can act on."""

from __future__ import annotations

import math
import re
import types
import typing
from typing import Any

import msgspec

from asyncflow.config.errors import SettingError, as_value, closest, did_you_mean
from asyncflow.config.names import entry_type, struct_of, unknown_setting
from asyncflow.config.root import RunConfig

REMOVABLE = ("stages", "resources", "models")  # a null entry in these removes the default of that name
WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", type(None): "null", dict: "a mapping"}
MOST_INT = 1 << 63  # workers receive the configuration in 64-bit integers
NOTHING = ("none", "nil", "unbounded", "infinite", "inf", "off", "false", "no")  # as people write null
AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])(i?)b?", re.IGNORECASE)  # 1GB, 512 MiB, 2k
PORT_ONLY = "observe.prometheus_bind"  # a number there is a port of this machine
EXAMPLES = {"dtype": "float32"}  # for settings without a default


def typed(plain: dict[str, Any]) -> RunConfig:
    """Convert plain data. Raises SettingError for an unknown or missing key or a value of the wrong type, naming its path."""
    plain = {key: _without_null(value) if key in REMOVABLE else value for key, value in plain.items()}
    refuse_wrong(plain, RunConfig, default=RunConfig())
    return msgspec.convert(plain, RunConfig)


def _without_null(entries: Any) -> Any:
    return {key: value for key, value in entries.items() if value is not None} if isinstance(entries, dict) else entries


def refuse_wrong(plain: Any, kind: Any, path: str = "", default: Any = msgspec.NODEFAULT) -> None:
    """Walk plain data beside the type it is meant for and the defaults, and refuse the first thing that does not fit."""
    struct, entry = struct_of(kind), entry_type(kind)
    if struct is not None and isinstance(plain, dict):
        _refuse_missing(plain, struct, path)
        hints, defaults = typing.get_type_hints(struct), _defaults(struct, default)
        for key, value in plain.items():
            if key not in hints:
                raise unknown_setting(path, str(key), struct, value)
            refuse_wrong(value, hints[key], _join(path, key), defaults[key])
    elif entry is not None and isinstance(plain, dict):
        for key, value in plain.items():
            refuse_wrong(value, entry, _join(path, key), default.get(key, msgspec.NODEFAULT) if isinstance(default, dict) else msgspec.NODEFAULT)
    else:
        _refuse_value(plain, kind, path, default)


def _defaults(struct: type, default: Any) -> dict[str, Any]:
    """What each setting of a record is where nobody sets it: NODEFAULT where somebody must."""
    if isinstance(default, struct):
        return {name: getattr(default, name) for name in typing.get_type_hints(struct)}
    return {
        setting.name: setting.default if setting.default_factory is msgspec.NODEFAULT else setting.default_factory()
        for setting in msgspec.structs.fields(struct)
    }


def _refuse_missing(plain: dict[str, Any], struct: type, path: str) -> None:
    for setting in msgspec.structs.fields(struct):
        if setting.required and setting.name not in plain:
            where = _join(path, setting.name)
            raise SettingError(
                where,
                rule=f"it is missing and has no default, it must be {in_words(typing.get_type_hints(struct)[setting.name])}",
                consequence="what it describes could not be made, so nothing was started",
                fix=[f"++{where}={EXAMPLES[setting.name]}"] if setting.name in EXAMPLES else [],
                advice=f"or give it beside the others of {path!r}",
            )


def _refuse_value(value: Any, kind: Any, path: str, default: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        consequence = "workers receive it as JSON, which has no other, so nothing was started"
        raise SettingError(path, value, rule="it must be finite", consequence=consequence, **fix_of(path, value, kind, default))
    if isinstance(value, int) and abs(value) >= MOST_INT:
        consequence = "workers receive it in 64 bits, so nothing was started"
        raise SettingError(path, value, rule=f"it must be below {MOST_INT}", consequence=consequence, **fix_of(path, value, kind, default))
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        rule = f"it must be {in_words(kind)}{' (null is not allowed)' if value is None else ''}{_meant(value, kind)}"
        consequence = "no part of the run could read it, so nothing was started"
        raise SettingError(path, value, rule=rule, consequence=consequence, **fix_of(path, value, kind, default)) from None


def _meant(value: Any, kind: Any) -> str:
    """For a misspelt word of an enumeration."""
    words = _words(kind)
    return f", {did_you_mean(value, words)}" if isinstance(value, str) and closest(value, words) is not None else ""


def setting_at(key: str) -> tuple[Any, Any]:
    """(type, default) of the setting with this dotted name; None as type where there is none, or where it is free."""
    kind, default = typing.cast(Any, RunConfig), typing.cast(Any, RunConfig())
    for part in key.split("."):
        struct, entry = struct_of(kind), entry_type(kind)
        if struct is not None and part in typing.get_type_hints(struct):
            kind, default = typing.get_type_hints(struct)[part], _defaults(struct, default)[part]
        elif entry is not None:
            kind, default = entry, default.get(part, msgspec.NODEFAULT) if isinstance(default, dict) else msgspec.NODEFAULT
        else:
            return None, msgspec.NODEFAULT
    return kind, default


def fix_of(path: str, value: Any, kind: Any, default: Any, *others: Any) -> dict[str, Any]:
    """The `fix` or `advice` of a SettingError: what was probably meant (`value`, one of `others`, or near them), else the default."""
    if path == PORT_ONLY and isinstance(value, int):
        value = f"127.0.0.1:{value}"
    for candidate in [found for meant in (value, *others) for found in _candidates(meant, kind)]:
        try:
            return {"fix": [f"{path}={as_value(msgspec.to_builtins(msgspec.convert(candidate, kind, strict=False)))}"]}
        except (msgspec.ValidationError, OverflowError, ValueError):  # not this one
            continue
    if default is msgspec.NODEFAULT or isinstance(default, msgspec.Struct) or (isinstance(default, dict) and default):
        return {"advice": f"give {in_words(kind)}, or remove {path!r}: then its defaults apply (docs/configuration.md)"}
    return {"fix": [f"{path}={as_value(msgspec.to_builtins(default))}"]}


def _candidates(value: Any, kind: Any) -> list[Any]:
    """Values of which one may be what the user meant. Numbers beyond all bounds are not: the default takes their place."""
    if isinstance(value, str):
        if value.lower() in NOTHING and type(None) in typing.get_args(kind):
            return [None]
        if (amount := AMOUNT.fullmatch(value)) is not None:
            number, letter, binary = amount.groups()
            return [round(float(number) * (1024 if binary else 1000) ** (1 + "kmgt".index(letter.lower())))]
        near = closest(value, _words(kind))
        return [value if near is None else near, [value]] if value else []
    if isinstance(value, float):
        return [round(value)] if abs(value) < MOST_INT else []  # NaN is below nothing
    if isinstance(value, list):
        return [value, *value[:1]] if len(value) < 2 or all(isinstance(entry, str) for entry in value) else []
    return [[value]] if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_INT else []


def _words(kind: Any) -> list[str]:
    """The words of the enumerations in a type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return [arg for arg in args if isinstance(arg, str)]
    return [word for arg in args for word in _words(arg)] if origin in (typing.Union, types.UnionType) else []


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


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
