"""What `rollout.options` may say when `rollout.engine` is the embedded one. Beside its folder, which needs torch."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncflow.config.errors import SettingError
from asyncflow.config.settings import Settings
from asyncflow.config.typed import refuse_wrong

WHERE = "rollout.options"


class EmbeddedSettings(Settings, frozen=True):
    """Settings of the embedded engine."""

    pad_token_id: int = 0  # Token in rows and columns that hold nothing.
    prefill_rows: int = 4  # Prompts in one prefill batch.
    steps_per_call: int = 1  # Decode steps between two looks at the queue: more means fewer, longer chunks, never other tokens.
    max_queued: int = 1 << 14  # Most requests that wait for a slot.


def embedded_settings(options: dict[str, Any]) -> EmbeddedSettings:
    """Raises SettingError that names the key, the rule and the fix."""
    refuse_wrong(options, EmbeddedSettings, WHERE, EmbeddedSettings())
    settings = msgspec.convert(options, EmbeddedSettings)
    for name, least in (("pad_token_id", 0), ("prefill_rows", 1), ("steps_per_call", 1), ("max_queued", 1)):
        if getattr(settings, name) < least:
            key, fix = f"{WHERE}.{name}", [f"{WHERE}.{name}={getattr(EmbeddedSettings(), name)}"]
            raise SettingError(key, getattr(settings, name), rule=f"it must be at least {least}", consequence="the engine would not start", fix=fix)
    return settings
