"""Every `asyncflow train` that README and recipes show is run as it stands, with fewer steps."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import SUMMARY, Summary

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "recipes").glob("*/README.md")))
SHORT = ("run.steps=3", "evaluation.items=64")


def commands() -> list[str]:
    """Lines of code blocks that start with `asyncflow train`, comments off, duplicates once."""
    lines = [line for page in PAGES for block in re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), re.DOTALL) for line in block.splitlines()]
    return list(dict.fromkeys(line.partition("#")[0].strip() for line in lines if line.startswith("asyncflow train")))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_the_pages_show_commands() -> None:
    assert len(commands()) >= 6


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_docs_runs(tmp_path: Path, cache: Path, command: str) -> None:
    words = shlex.split(command)[1:]
    if "--run-dir" in words:
        place = words.index("--run-dir")
        del words[place : place + 2]
    arguments = [*words, *SHORT, f"run.cache={cache}", "--run-dir", str(tmp_path / "run")]
    program = [sys.executable, "-m", "asyncflow.cli.main", *arguments]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path / "run")
    assert msgspec.json.decode((tmp_path / "run" / SUMMARY).read_bytes(), type=Summary).versions == 3
