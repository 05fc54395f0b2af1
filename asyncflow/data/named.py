"""Things named in YAML by import path ("package.module:name"), so that one of your own is a file and a line of YAML."""

from __future__ import annotations

import importlib
from typing import Any


def load_named(path: str, setting: str) -> Any:
    """What `path` names. Raises ValueError that names `setting`, the path and the rule."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting} = {path!r} cannot be loaded ({error}); it must be 'package.module:name', so nothing is started") from error
