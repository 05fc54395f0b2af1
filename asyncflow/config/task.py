"""Settings of the task and of its data: which items there are and how they are read."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncflow.config.settings import Settings


class TaskSettings(Settings, frozen=True):
    """Where prompts come from and how answers are scored."""

    path: str = ""  # "module:function" of the task factory, called with `options` as keyword arguments.
    options: dict[str, Any] = msgspec.field(default_factory=dict)  # The task's own settings.
    item_bytes: int = 1024  # Most bytes of one item's metadata (the `item` column); part of the worst case of a group.


class DataSettings(Settings, frozen=True):
    """How the source feeds prompts."""

    prompts_bound: int = 256  # Most prompts that wait for admission; a put beyond it parks.
