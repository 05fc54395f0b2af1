"""On what a run was made: enough to make it again, and nothing that should not leave the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from asyncflow.observe.environment import ENVIRONMENT, Environment, environment, write_environment

ROOT = Path(__file__).parents[2]


def test_the_environment_of_this_process() -> None:
    found = environment(["/home/somebody/bin/asyncflow", "train", "recipes/quickstart", "staleness=0"])
    assert found.command == ["asyncflow", "train", "recipes/quickstart", "staleness=0"]
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "numpy", "pyzmq", "msgspec"} <= found.packages.keys()
    assert found.cores == os.cpu_count()
    assert found.memory_bytes is not None
    assert found.memory_bytes > 2**28


def test_the_source_s_commit_is_recorded_where_the_tree_is_one() -> None:
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    expected = done.stdout.strip() if done.returncode == 0 and (ROOT / ".git").exists() else None
    assert environment([]).commit == expected


def test_the_file_holds_no_home_no_host_and_no_environment_variable(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("ASYNCFLOW_TEST_TOKEN", "a-secret-of-the-host")
    write_environment(tmp_path, [f"{Path.home()}/venv/bin/asyncflow", "train", "x"])
    text = (tmp_path / ENVIRONMENT).read_text()
    assert "a-secret-of-the-host" not in text
    assert f"{Path.home()}/" not in text
    assert str(ROOT) not in text
    assert f'"{socket.gethostname()}"' not in text
    assert msgspec.json.decode(text, type=Environment).command[0] == "asyncflow"


def test_it_is_written_without_loading_torch() -> None:
    code = "import sys, asyncflow.observe.environment as e; e.environment(sys.argv); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_what_is_not_known_has_no_row() -> None:
    nothing = Environment("2026-01-01T00:00:00+00:00", ["x"], "3.11.0", {}, "Linux", None, None, None, None, None, None)
    assert dict(nothing.rows()).keys() == {"started", "command", "python", "system"}
