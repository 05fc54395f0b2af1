"""Change a module right after it was imported, whoever imports it and when: modules of verl take seconds, and few processes need them all."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Mend = Callable[[ModuleType], None]
_WAITING: dict[str, list[Mend]] = {}


def after_import(name: str, mend: Mend) -> None:
    """Call `mend(module)` once: now, if `name` is imported, else right after its code ran and before anyone can take a name from it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    waiting = _WAITING.setdefault(name, [])
    if mend not in waiting:
        waiting.append(mend)
        if name in sys.modules:
            mend(sys.modules[name])


class _Finder(MetaPathFinder):
    """Finds nothing by itself: what the others find is given a loader that calls the mends."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in _WAITING:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader.exec_module = functools.partial(_run, spec.loader.exec_module)  # type: ignore[method-assign]  # a loader is made for each spec
                return spec
        return None


def _run(execute: Callable[[ModuleType], Any], module: ModuleType) -> None:
    execute(module)
    for mend in _WAITING[module.__name__]:
        mend(module)
