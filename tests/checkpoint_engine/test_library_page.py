"""What docs/checkpoint_engine.md shows runs as it stands, without AsyncFlow and without the queue."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "checkpoint_engine.md"
EXAMPLE = ROOT / "docs" / "examples" / "weights.py"
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('transfer_queue', 'asyncflow'))); "


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_program_of_the_page_prints_what_stands_under_it() -> None:
    (code,), (output,) = blocks("python"), blocks("text")
    done = python("-c", f"{WITHOUT}\n{code}")
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_the_example_brings_one_version_to_two_other_processes() -> None:
    done = python(str(EXAMPLE))
    said = re.findall(r"(policy@0\.3:\w{8}), sum (\S+)$", done.stdout, re.MULTILINE)
    assert (done.returncode, len(said), len(set(said)), done.stderr) == (0, 3, 1, "")
