"""Things named in YAML by import path ("package.module:name"), so that one of your own is a file and a line of YAML."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def load_named(path: str, setting: str) -> Any:
    """What `path` names. Raises ValueError that names `setting`, the path and the rule."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{setting} = {path!r} cannot be loaded ({error}); it must be 'package.module:name', so nothing is started") from error


def check_named(path: str, setting: str) -> None:
    """Whether there is such a module. Imports the packages around it, not the module itself, for that may load torch. Raises ValueError."""
    module, _, name = path.partition(":")
    try:
        found = bool(module and name) and importlib.util.find_spec(module) is not None
        why = f"there is no module {module!r}" if module and name else "it does not name module and name"
    except (ImportError, ValueError) as error:  # of a package around it; ValueError: a relative name
        found, why = False, str(error)
    if not found:
        raise ValueError(
            f"{setting} = {path!r}: {why}, so the worker that needs it could not start (nothing was started). Fix: "
            f"{setting}=package.module:name, installed here or in a folder that PYTHONPATH names"
        )
