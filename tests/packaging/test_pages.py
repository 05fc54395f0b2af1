"""The documents name only what is there: tests, files and folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").glob("*/*.md")])
TOPS = ("asyncflow", "transfer_queue", "checkpoint_engine", "recipes", "tests", "docs", "benchmarks", "constraints")


def test_every_test_that_the_table_of_faults_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "faults.md").read_text()))
    there = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    assert len(named) > 40
    assert named - there == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_link_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = [path for path in re.findall(r"`([\w./*-]+/[\w./*-]*)`", text) if path.split("/")[0] in TOPS]
    assert [path for path in paths if not list(ROOT.glob(path.rstrip("/"))) and not absent_on_purpose(path)] == []


def absent_on_purpose(path: str) -> bool:
    """What the plan says is still to come."""
    return path == "transfer_queue/compat"
