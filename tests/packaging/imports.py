"""Which modules a source file imports, at its top or anywhere inside, without running it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("asyncflow", "checkpoint_engine", "transfer_queue", "shared_arena", "recipes")


def sources(*folders: str) -> Iterator[Path]:
    """Python files of these folders of the repository."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Dotted names of every import statement in the file, relative ones resolved."""
    found: set[str] = set()
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return frozenset(found)


def tops(path: Path) -> set[str]:
    """Top-level packages that the file imports."""
    return {name.split(".")[0] for name in imported(path)}
