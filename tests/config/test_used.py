"""A setting that nothing reads would be accepted and ignored: there is none."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from asyncflow.config.docs import records

ROOT = Path(__file__).parents[2] / "asyncflow"
OWN = ("config/check.py", "config/docs.py", "config/typed.py", "config/rules/")  # they look at every setting, which is not using it


def test_every_setting_is_read_somewhere() -> None:
    read: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if not str(path.relative_to(ROOT)).startswith(OWN):
            read.update(node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute))
    unread = [f"{path}{setting.name}" for path, record in records() for setting in msgspec.structs.fields(record) if setting.name not in read]
    assert unread == []
