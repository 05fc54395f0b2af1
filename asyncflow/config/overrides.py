"""Overrides of the command line that lead nowhere are refused with what was meant; Hydra itself does not say it."""

from __future__ import annotations

from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from asyncflow.config.errors import ABSENT, Raw, SettingError, as_value, closest, did_you_mean
from asyncflow.config.names import refuse_unknown_key
from asyncflow.config.typed import fix_of, setting_at

UNAPPLIED = "it could not be applied, so nothing was started"


def check_keys(overrides: list[str]) -> None:
    """Refuse what is no KEY=VALUE, keys that no record has, and values that cannot be read. Raises SettingError."""
    parser = OverridesParser.create()
    for override in overrides:
        key, sign, raw = _split(override)
        if not key or (not sign and not override.startswith("~")):
            raise _no_pair(override, key)
        refuse_unknown_key(key, ABSENT if not sign else Raw(raw))
        _check_value(parser, override, key, raw)


def _split(override: str) -> tuple[str, str, str]:
    """Key, "=" or "", value of '+resources.rollout.workers=2'."""
    key, sign, raw = override.partition("=")
    return key.lstrip("+~").split("@")[0], sign, raw


def _no_pair(override: str, key: str) -> SettingError:
    kind, default = setting_at(key)
    mended = fix_of(key, "", kind, default) if kind is not None else {"advice": "write KEY=VALUE, e.g. staleness=4"}
    rule = "an override is KEY=VALUE (or ~KEY, which removes it)"
    return SettingError(f"override {override!r}", rule=rule, consequence=UNAPPLIED, **mended)


def _check_value(parser: OverridesParser, override: str, key: str, raw: str) -> None:
    """What Hydra cannot read, or would take as several runs."""
    kind, default = setting_at(key)
    try:
        several = parser.parse_override(override).is_sweep_override()
    except HydraException as error:
        reason = str(error).splitlines()[-1].partition(" expecting ")[0].strip()
        mended = fix_of(key, raw, kind, default, raw.lstrip("= ")) if kind is not None else {"fix": [f"{key}={as_value(raw)}"]}
        rule = f"its value cannot be read ({reason}); a text with brackets, quotes, = or commas needs quotes"
        raise SettingError(key, Raw(raw), rule=rule, consequence=UNAPPLIED, **mended) from None
    if several:
        words = [word.strip() for word in raw.split(",")]
        mended = fix_of(key, words, kind, default, words[0]) if kind is not None else {"fix": [f"{key}=[{raw}]"]}
        rule = "a bare comma separates several runs, and this is one run; a list stands in brackets"
        raise SettingError(key, Raw(raw), rule=rule, consequence=UNAPPLIED, **mended)


def blame(tree: dict[str, Any], override: str, reason: str) -> SettingError:
    """Why `override` cannot be applied to `tree`, what was composed before it. `reason`: Hydra's own words, where nothing better is known."""
    key, _, raw = _split(override)
    node: Any = tree
    path = ""
    for part in key.split("."):
        if not isinstance(node, dict):
            fix = [] if override.startswith("~") else [f"{path}={raw}"]
            rule = f"{path} = {node!r}, which has no entries"
            return SettingError(key, Raw(raw), rule=rule, consequence=UNAPPLIED, fix=fix, advice="" if fix else f"remove {path!r} instead")
        if part not in node:
            return _missing(override, path, part, [str(known) for known in node])
        node, path = node[part], f"{path}.{part}" if path else part
    if override.startswith("+"):
        rule = "a leading + adds an entry, and this one is there"
        return SettingError(key, Raw(raw), rule=rule, consequence=UNAPPLIED, fix=[f"{key}={raw}"], advice="without the +")
    return SettingError(f"override {override!r}", rule=reason, consequence=UNAPPLIED, advice="write KEY=VALUE, e.g. staleness=4")


def _missing(override: str, path: str, part: str, known: list[str]) -> SettingError:
    key, _, raw = _split(override)
    where, near = f"{path}.{part}" if path else part, closest(part, known)
    rule = f"{where}: there is no such entry, {did_you_mean(part, known)}"
    meant = [] if near is None else [override.replace(where, f"{path}.{near}" if path else near, 1)]
    if override.startswith("~") or raw == "null":
        advice = "or leave it out: there is nothing to remove" if meant else "leave it out: there is nothing to remove"
        return SettingError(where, rule=rule.partition(": ")[2], consequence=UNAPPLIED, fix=meant, advice=advice)
    value = Raw(raw)
    if meant:
        return SettingError(key, value, rule=rule, consequence=UNAPPLIED, fix=meant, advice=f"or, for a new one, +{override}")
    return SettingError(key, value, rule=rule, consequence=UNAPPLIED, fix=[f"+{override}"], advice="which adds it")
