"""`python -m transfer_queue controller … --journal DIR`: the same command after a kill is the same controller."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from transfer_queue.__main__ import main
from transfer_queue.client import QueueClient

WAIT_S = 30.0
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "queue.toml"


@contextmanager
def controller(file: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """It, and where it says that it listens. Killed with -9 on leaving the context."""
    command = [sys.executable, "-m", "transfer_queue", "controller", str(file), "--journal", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"tcp://\S+", line)
            assert found, line
            yield process, found[0]
        finally:
            process.kill()


def test_the_command_that_is_given_again_after_a_kill_takes_its_members_back(tmp_path: Path) -> None:
    file = tmp_path / "queue.toml"
    file.write_text("comeback_s = 30.0\n" + EXAMPLE.read_text())
    with controller(file, tmp_path / "journal") as (_, url):
        client = QueueClient.connect(url, name="source-0", role="source", timeout_s=WAIT_S)
    with client, controller(file, tmp_path / "journal") as (process, again):
        assert again == url
        client.close_prompts("sums", 4).result(WAIT_S)
        assert list(client.status().result(WAIT_S).status.members) == ["source-0#0"]
        client.leave().result(WAIT_S)
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_journal_whose_members_would_not_wait_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller", str(EXAMPLE), "--journal", str(tmp_path / "journal")]) == 1
    assert "comeback_s" in capsys.readouterr().err
    assert not (tmp_path / "journal").exists()
