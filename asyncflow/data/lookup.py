"""Whether an import path ("package.module:name") leads somewhere, found out by reading and never by importing, for a module may load torch.

What cannot be known by reading (names that a module makes while it runs, compiled modules) is taken to be there: only the import itself can tell.
"""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NamedTuple

from asyncflow.config.errors import closest

DYNAMIC = ("globals", "vars", "exec", "setattr", "locals")  # calls by which a module may name things that its text does not show


class Missing(NamedTuple):
    """Why an import path leads nowhere, and the one that was probably meant."""

    why: str
    meant: str | None = None


def missing(path: str) -> Missing | None:
    """What is wrong with an import path; None for one that leads somewhere, as far as reading tells."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        return Missing("it does not name module and name")
    if not all(part.isidentifier() for part in module.split(".")):
        return Missing(f"{module!r} is no name of a module (a relative one is not either)")
    spec, lost = _find(module)
    if lost is not None:
        return Missing(lost.why, None if lost.meant is None else f"{lost.meant}:{name}")
    names = None if spec is None else names_of(spec)
    if names is None or name in names or _is_module(f"{module}.{name}", spec):
        return None
    near = closest(name, (known for known in names if not known.startswith("_")))
    hint = f", did you mean {near!r}?" if near is not None else ""
    return Missing(f"module {module!r} has no {name!r}{hint}", None if near is None else f"{module}:{near}")


def _find(module: str) -> tuple[ModuleSpec | None, Missing | None]:
    """The module's spec, package by package, without running any of their code. (None, None): it cannot be known."""
    parts = module.split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
    except ValueError:  # a module without a spec is loaded already: __main__
        return None, None
    if spec is None:
        return None, Missing(f"there is no module {parts[0]!r}")
    for count, part in enumerate(parts[1:], start=1):
        package = ".".join(parts[:count])
        places = spec.submodule_search_locations
        if places is None:
            return None, Missing(f"there is no module {module!r}: {package!r} is no package")
        found = PathFinder.find_spec(part, list(places))  # by its last name: a folder without __init__.py would look for its parent among the loaded
        if found is None:
            if _moves_its_path(spec):
                return None, None
            near = closest(part, _modules(places))
            meant = None if near is None else ".".join([package, near, *parts[count + 1 :]])
            hint = f", did you mean {package}.{near}?" if near is not None else ""
            return None, Missing(f"there is no module {package + '.' + part!r}{hint}", meant)
        spec = found
    return spec, None


def names_of(spec: ModuleSpec) -> set[str] | None:
    """Names at the top level of a module's source; None where the source does not show them all."""
    tree = _tree(spec)
    if tree is None or any(_dynamic(node) for node in ast.walk(tree)):
        return None
    return set(_bound(tree.body))


def _tree(spec: ModuleSpec) -> ast.Module | None:
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None  # built in, compiled, or a package without a file
    try:
        return ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):  # the worker that imports it says more
        return None


def _dynamic(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name == "*" for alias in node.names)
    if isinstance(node, ast.FunctionDef):
        return node.name == "__getattr__"
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DYNAMIC


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    """What these statements bind in their module, those inside of `if`, `try`, `with` and loops included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        else:
            yield from _names(node)


def _names(node: ast.stmt) -> Iterator[str]:
    """Of any other statement: names it stores, and what its blocks bind."""
    blocks = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
    blocks += [part.body for part in (*getattr(node, "handlers", []), *getattr(node, "cases", []))]
    inner = {id(child) for block in blocks for child in block}
    for child in ast.iter_child_nodes(node):
        if id(child) not in inner and not isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from (found.id for found in ast.walk(child) if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store))
    for block in blocks:
        yield from _bound(block)


def _modules(places: Sequence[str]) -> list[str]:
    return [found.name for found in pkgutil.iter_modules(list(places))]


def _is_module(module: str, package: ModuleSpec | None) -> bool:
    """A submodule is an attribute of its package once somebody imported it."""
    places = package.submodule_search_locations if package is not None else None
    return places is not None and module.rpartition(".")[2] in _modules(places)


def _moves_its_path(package: ModuleSpec) -> bool:
    """A package that changes where its modules are looked for."""
    tree = _tree(package)
    return tree is not None and any(isinstance(node, ast.Name) and node.id == "__path__" for node in ast.walk(tree))
