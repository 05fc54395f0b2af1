"""The reference of settings is generated, complete and current."""

from __future__ import annotations

from pathlib import Path

import msgspec

from asyncflow.config.docs import records, render, sentences

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_every_setting_has_a_sentence() -> None:
    for path, record in records():
        said = sentences(record)
        for setting in msgspec.structs.fields(record):
            assert said[setting.name].endswith("."), f"{path}{setting.name} in {record.__name__} has no sentence"


def test_the_reference_in_docs_is_current() -> None:
    assert DOCS.read_text() == render(), "run `make docs`"
