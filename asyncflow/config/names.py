"""Names of settings: which there are, and what a name that leads nowhere was meant to be."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

import msgspec

from asyncflow.config.errors import ABSENT, SettingError, as_value, closest, did_you_mean
from asyncflow.config.root import RunConfig

IGNORED = "it would be ignored, so nothing was started (all settings: docs/configuration.md)"


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The settings record in a type such as `X` or `X | None`."""
    candidates = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, msgspec.Struct)), None)


def entry_type(kind: Any) -> Any:
    """Type of the entries of a mapping whose keys are free (`stages`, `resources`, `models`, `outputs`, `options`); None for anything else."""
    return typing.get_args(kind)[1] if typing.get_origin(kind) is dict else None


@functools.cache
def leaves() -> dict[str, list[str]]:
    """Last part of a name → every full name that ends with it, entries of free mappings left out."""
    found: dict[str, list[str]] = {}

    def visit(path: str, record: type[msgspec.Struct]) -> None:
        for name, kind in typing.get_type_hints(record).items():
            found.setdefault(name, []).append(path + name)
            inner = struct_of(kind)
            if inner is not None:
                visit(f"{path}{name}.", inner)

    visit("", RunConfig)
    return found


def unknown_setting(path: str, key: str, struct: type[msgspec.Struct], value: object = ABSENT) -> SettingError:
    """The refusal of `path.key`, which the record `struct` at `path` does not have. A name that is right elsewhere is told its place."""
    where = f"{path}.{key}" if path else key
    known = typing.get_type_hints(struct)
    homes = leaves().get(key, [])
    near = homes[0] if len(homes) == 1 else closest(key, known)
    meant = near if near is None or len(homes) == 1 or not path else f"{path}.{near}"
    hint = f"did you mean {near!r}?" if near is not None else did_you_mean(key, known)
    rule = f"there is no such setting, {hint}"
    if meant is None:
        return SettingError(where, value, rule=rule, consequence=IGNORED, advice=f"remove {where!r}")
    if value is ABSENT or isinstance(value, dict):
        return SettingError(where, value, rule=rule, consequence=IGNORED, advice=f"write {meant!r} for {where!r}")
    return SettingError(where, value, rule=rule, consequence=IGNORED, fix=[f"{meant}={as_value(value)}"], advice=f"in place of {where!r}")


def refuse_unknown_key(key: str, value: object) -> None:
    """Refuse a dotted key of the command line that leads nowhere. Entries of mappings (`stages.mine`) are free to be new. Raises SettingError."""
    kind: Any = RunConfig
    path = ""
    parts = key.split(".")
    for place, part in enumerate(parts):
        struct = struct_of(kind)
        if struct is not None:
            hints = typing.get_type_hints(struct)
            if part not in hints:
                raise _with_rest(path, parts[place:], struct, value)
            kind = hints[part]
        elif (kind := entry_type(kind)) is None:
            return  # inside free options, or below a value: whoever composes says so
        path = f"{path}.{part}" if path else part


def _with_rest(path: str, parts: list[str], struct: type[msgspec.Struct], value: object) -> SettingError:
    """`rollot.slots=8`: the wrong part is in the middle, and what is behind it belongs to the fix."""
    error = unknown_setting(path, parts[0], struct, value if len(parts) == 1 else ABSENT)
    if len(parts) == 1:
        return error
    rest = ".".join(parts[1:])
    near = closest(parts[0], typing.get_type_hints(struct))
    if near is None:
        return error
    meant = f"{path}.{near}" if path else near
    fix = [f"{meant}.{rest}={as_value(value)}"]
    return SettingError(f"{error.key}.{rest}", value, rule=error.rule, consequence=error.consequence, fix=fix, advice=f"in place of {error.key!r}")
