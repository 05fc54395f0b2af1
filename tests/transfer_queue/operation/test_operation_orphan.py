"""A part whose starter is gone ends without a word to nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from transfer_queue.controller.config import CoreConfig

END_S = 30.0


def test_a_controller_whose_starter_was_killed_ends_in_order_and_complains_of_no_pipe(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_bytes(msgspec.json.encode(CoreConfig(topics=[], keyed_only=True)))
    asked = [sys.executable, "-m", "transfer_queue", "controller", str(tmp_path / "queue.json"), "--bind", "tcp://127.0.0.1:0", "--drain-s", "0.1"]
    process = subprocess.Popen(
        [*asked, "--attached"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"controller at ")
        process.stdout.close()
        process.stdin.close()
        assert process.wait(END_S) == 0
        assert process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
