"""The gate: whatever state a killed writer left the files in, the report opens and shows what is there."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from asyncflow.observe.report.build import report_of
from asyncflow.observe.report.page import render
from asyncflow.observe.report.trace import write_trace
from tests.observe.report.browser import open_page
from tests.observe.report.run_files import FILES, whole_run

pytestmark = pytest.mark.tools

CUTS = 24  # places within a record
LOGS = tuple(name for name in FILES if name.endswith(".jsonl"))


def cut_copy(run_dir: Path, folder: Path, ends: dict[str, int]) -> Path:
    """The run with these files cut off after so many bytes."""
    folder.mkdir(exist_ok=True)
    for name in FILES:
        (folder / name).write_bytes((run_dir / name).read_bytes()[: ends.get(name)])
    return folder


def opens(run_dir: Path, trace: Path) -> str:
    """The page, built without an exception and with data that parse, and the trace likewise."""
    page = render([report_of(run_dir)])
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert len(json.loads(data.group(1))) == 1
    write_trace(trace, [run_dir])
    json.loads(trace.read_text())
    return page


@pytest.mark.parametrize("seed", range(30))
def test_files_that_were_cut_anywhere_make_a_page(tmp_path: Path, seed: int) -> None:
    run_dir = whole_run(tmp_path, steps=3)
    dice = random.Random(seed)
    ends = {name: dice.randrange((run_dir / name).stat().st_size + 1) for name in FILES if dice.random() < 0.8}
    print(f"seed {seed}: cut at {ends}")
    opens(cut_copy(run_dir, tmp_path / "cut", ends), tmp_path / "trace.json")


@pytest.mark.parametrize("name", FILES)
def test_every_cut_within_the_last_record_of_a_file_makes_a_report(tmp_path: Path, name: str) -> None:
    run_dir = whole_run(tmp_path, steps=2)
    data = (run_dir / name).read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") if name in LOGS else 0
    whole = report_of(run_dir)
    for end in range(max(0, last), len(data), max(1, (len(data) - last) // CUTS)):
        cut = report_of(cut_copy(run_dir, tmp_path / "cut", {name: end}))
        assert len(cut.figures) == len(whole.figures), f"{name} cut at {end}"
        lost_nothing = data[:end].endswith(b"\n") if name in LOGS else end >= len(data) - 1
        assert lost_nothing or any(name in note for note in cut.notes), f"{name} cut at {end}: the page does not say so"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_empty_or_missing_makes_a_page(tmp_path: Path, name: str) -> None:
    run_dir = whole_run(tmp_path, steps=2)
    opens(cut_copy(run_dir, tmp_path / "cut", {name: 0}), tmp_path / "trace.json")
    (tmp_path / "cut" / name).unlink()
    opens(tmp_path / "cut", tmp_path / "trace.json")


@pytest.mark.parametrize("seed", range(20))
def test_bytes_that_were_damaged_make_a_page(tmp_path: Path, seed: int) -> None:
    run_dir = whole_run(tmp_path, steps=2)
    dice = random.Random(seed)
    for name in FILES:
        data = bytearray((run_dir / name).read_bytes())
        for _ in range(10):
            data[dice.randrange(len(data))] = dice.randrange(256)
        (run_dir / name).write_bytes(data)
    print(f"seed {seed}")
    opens(run_dir, tmp_path / "trace.json")


@pytest.mark.parametrize("seed", [100])
def test_a_cut_run_is_drawn_by_a_browser(tmp_path: Path, seed: int) -> None:
    run_dir = whole_run(tmp_path)
    dice = random.Random(seed)
    ends = {name: dice.randrange((run_dir / name).stat().st_size + 1) for name in FILES}
    print(f"seed {seed}: cut at {ends}")
    page = tmp_path / "report.html"
    page.write_text(opens(cut_copy(run_dir, tmp_path / "cut", ends), tmp_path / "trace.json"))
    opened = open_page(page, tmp_path / "profile")
    assert opened.data("report") == "drawn", opened.console
    assert opened.console == []
