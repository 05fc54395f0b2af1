"""What most rules on numbers come down to: at least, at most, above."""

from __future__ import annotations

from asyncflow.config.errors import SettingError


def at_least(key: str, value: float | None, least: int, consequence: str) -> None:
    """None is no number and none of this rule's business."""
    if value is not None and value < least:
        raise SettingError(key, value, rule=f"it must be at least {least}", consequence=consequence, fix=[f"{key}={least}"], advice="or more")


def at_most(key: str, value: float, most: int, consequence: str) -> None:
    if value > most:
        raise SettingError(key, value, rule=f"it must be at most {most}", consequence=consequence, fix=[f"{key}={most}"], advice="or less")


def above(key: str, value: float | None, bound: float, fix: float | str, consequence: str) -> None:
    if value is not None and value <= bound:
        raise SettingError(key, value, rule=f"it must be above {bound:g}", consequence=consequence, fix=[f"{key}={fix}"])
