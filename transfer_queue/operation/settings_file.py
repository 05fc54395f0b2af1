"""The file that a queue is started with, TOML or JSON: the fields of `CoreConfig`, above all its topics.

TOML has no null: there, `staleness = "null"` is a window that bytes alone bound.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from transfer_queue.controller.config import CoreConfig
from transfer_queue.controller.duties import Duty
from transfer_queue.messages import Column, Consumer, TopicSpec, Window

_KNOWN = {field for record in (CoreConfig, TopicSpec, Column, Consumer, Window, Duty) for field in record.__struct_fields__}


def load(path: Path) -> CoreConfig:
    """Raises ValueError with the place inside the file of what is wrong, OSError where it cannot be read. Whether the topics can work is checked by
    the controller when it starts."""
    if path.suffix not in (".toml", ".json"):
        raise ValueError(f"{path}: a queue is started with a file that ends in .toml or .json, not in {path.suffix!r}; nothing was started")
    try:
        text = path.read_text(encoding="utf-8")
        content = msgspec.json.decode(text) if path.suffix == ".json" else _with_nulls(tomllib.loads(text))
        return msgspec.convert(content, CoreConfig)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}{_meant(str(error))}; nothing was started") from None


def _with_nulls(content: Any) -> Any:
    """`content` as TOML gives it."""
    if isinstance(content, dict):
        return {key: None if (key, value) == ("staleness", "null") else _with_nulls(value) for key, value in content.items()}
    return [_with_nulls(value) for value in content] if isinstance(content, list) else content


def _meant(error: str) -> str:
    """For a field that nobody knows."""
    unknown = re.search(r"unknown field `(.*?)`", error)
    close = difflib.get_close_matches(unknown[1], _KNOWN, n=1) if unknown else []
    return f"; did you mean {close[0]!r}?" if close else ""
