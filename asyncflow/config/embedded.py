"""What `rollout.options` may say when `rollout.engine` is the embedded one. Its shapes are settings of `rollout` itself."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncflow.config.rules.bounds import at_least
from asyncflow.config.settings import Settings
from asyncflow.config.typed import refuse_wrong

WHERE = "rollout.options"


class EmbeddedSettings(Settings, frozen=True):
    """Settings of the embedded engine."""

    pad_token_id: int = 0  # What idle slots are fed.
    prefill_rows: int = 4  # Prompts of a prefill batch.
    steps_per_call: int = 1  # Decode steps between two looks at what else is to do; more means longer chunks, never other tokens.
    max_queued: int = 1 << 14  # Most requests that wait for a slot.


def embedded_settings(options: dict[str, Any]) -> EmbeddedSettings:
    """Raises SettingError that names the key, the rule and the fix."""
    refuse_wrong(options, EmbeddedSettings, WHERE, EmbeddedSettings())
    settings = msgspec.convert(options, EmbeddedSettings)
    at_least(f"{WHERE}.pad_token_id", settings.pad_token_id, 0, "there is no such token")
    at_least(f"{WHERE}.prefill_rows", settings.prefill_rows, 1, "no prompt could be read")
    at_least(f"{WHERE}.steps_per_call", settings.steps_per_call, 1, "nothing would be generated")
    at_least(f"{WHERE}.max_queued", settings.max_queued, 1, "every request would be refused")
    return settings
