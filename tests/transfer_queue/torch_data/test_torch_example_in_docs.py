"""The example of docs/transfer_queue.md runs as it stands there and says what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.markdown import DOCS, ROOT, fences


@pytest.mark.tools
def test_the_example_of_a_loader_runs_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    blocks = fences(DOCS / "transfer_queue.md")
    (place,) = [number for number, block in enumerate(blocks) if "QueueLoader(" in block.body and "__main__" in block.body]
    script = tmp_path / "example.py"  # a file: worker processes may have to import it
    script.write_text(blocks[place].body)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == blocks[place + 1].body.strip()
