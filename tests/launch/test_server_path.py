"""Workers run the code that the launcher runs, wherever it was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncflow.launch import server_path

ROOT = Path(__file__).parents[2]


def test_the_environment_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with server_path.same_path():
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [os.path.abspath(entry) for entry in sys.path]
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert os.environ["PYTHONPATH"] == "somewhere"
    assert "PYTHONSAFEPATH" not in os.environ
    assert server_path.BEFORE not in os.environ


@pytest.mark.e2e
def test_a_file_in_the_current_directory_that_is_named_like_a_library_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('the file beside the user was imported')\n")
    (tmp_path / "asyncflow").mkdir()
    (tmp_path / "asyncflow" / "__init__.py").write_text("raise SystemExit('another checkout was imported')\n")
    program = "import sys; from asyncflow.cli.main import main; sys.exit(main())"  # as the console script does
    command = [sys.executable, "-P", "-c", program, "train", str(ROOT / "tests/pipeline/config.yaml"), "run.steps=1", "--run-dir", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
