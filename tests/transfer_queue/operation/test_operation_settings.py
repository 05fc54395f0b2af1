"""The file that a queue is started with: what it says, and what is told of a mistake in it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import EXAMPLE, changed

from transfer_queue.__main__ import main
from transfer_queue.operation.settings_file import load


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("stall_s", "stal_s", r"unknown field `stal_s`; did you mean 'stall_s'\?; nothing was started"),
        ("producer = \"writer\"", "producr = \"writer\"", r"unknown field `producr` - at `\$.topics\[0\].columns\[1\]`; did you mean 'producer'\?"),
        ("lease_s = 30.0", "lease_s = \"long\"", r"Expected `float`, got `str` - at `\$.lease_s`"),
        ("[[topics]]", "[[topics", r"queue\.toml: Expected"),
        ("batch = 2", "batch = \"null\"", r"Expected `int`, got `str` - at `\$.topics\[0\].window.batch`"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_with_its_place(tmp_path: Path, old: str, new: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(changed(tmp_path, old, new))]) == 1
    said = capsys.readouterr().err
    assert re.search(told, said)
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_other_endings_and_files_that_are_not_there_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queue.yaml").write_text("topics: []")
    assert main(["serve", str(tmp_path / "queue.yaml")]) == 1
    assert main(["serve", str(tmp_path / "nothing.json")]) == 1
    said = capsys.readouterr().err
    assert "ends in .toml or .json, not in '.yaml'" in said
    assert "nothing.json" in said


def test_json_and_toml_say_the_same_and_null_is_no_zero(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(msgspec.json.encode(load(EXAMPLE)))
    assert load(tmp_path / "queue.json") == load(EXAMPLE)
    assert load(EXAMPLE).topics[0].window.staleness == 1
    assert load(changed(tmp_path, "staleness = 1", 'staleness = "null"')).topics[0].window.staleness is None
    assert load(changed(tmp_path, "staleness = 1", "staleness = 0")).topics[0].window.staleness == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ending=st.sampled_from([".toml", ".json"]), content=st.binary(max_size=60) | st.text("[]{}=\"\\n.,:#01 atopics", max_size=60).map(str.encode))
def test_no_bytes_in_a_file_are_more_than_a_value_error(tmp_path: Path, ending: str, content: bytes) -> None:
    file = tmp_path / f"queue{ending}"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="nothing was started"):
        load(file)


@pytest.mark.parametrize("ending", [".toml", ".json"])
def test_a_file_that_is_nested_too_deep_is_refused_too(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"queue{ending}"
    file.write_text("topics" * (ending == ".toml") + " = " * (ending == ".toml") + "[" * 100_000)
    with pytest.raises(ValueError, match="nothing was started"):
        load(file)
