"""What docs/transfer_queue.md shows runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from serving import ROOT, SOON_S, Serving

from transfer_queue import keys
from transfer_queue.local import LocalQueue

PAGE = ROOT / "docs" / "transfer_queue.md"
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(('torch', 'asyncflow', 'checkpoint_engine'))); "
MOST_LINES = 20


def section(heading: str) -> str:
    text = PAGE.read_text().split(f"\n{heading}\n")[1]
    return re.split(r"\n##+ ", text)[0]


def blocks(heading: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", section(heading), re.DOTALL | re.MULTILINE)


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_example_has_twenty_lines_and_says_what_the_page_says_without_torch_and_asyncflow() -> None:
    (code,), (output,) = blocks("## Use it without AsyncFlow", "python"), blocks("## Use it without AsyncFlow", "text")
    assert len([line for line in code.splitlines() if line.strip()]) <= MOST_LINES
    done = python(f"{WITHOUT}\n{code}")
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_a_member_in_a_process_of_its_own_grades_what_others_put() -> None:
    (first,), (code,) = blocks("## Use it without AsyncFlow", "python"), blocks("### A member in a process of its own", "python")
    names: dict[str, Any] = {}
    exec(compile(first.partition("with LocalQueue")[0], str(PAGE), "exec"), names)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    security = keys.make()
    with LocalQueue([names["spec"]], security=security, heartbeat_s=2.0) as queue, queue.client("me") as me, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "client.key").write_bytes(msgspec.json.encode(security.worker()))
        (Path(folder) / "client.key").chmod(0o600)
        member = subprocess.Popen([sys.executable, "-c", code, queue.url, "grade-0", f"{folder}/client.key"], env=environment)
        try:
            me.put("sums", {"answer": ["3", "three", "34", "4"]}, rows_per_group=2)
            batch = me.take("sums", "train", limit=2, at_least=2, step=0).result(SOON_S)
            assert me.read(batch.rows, ["score"], names["spec"])["score"].tolist() == [1.0, 0.0, 1.0, 1.0]
            me.stop("enough").result(5.0)
            assert member.wait(SOON_S) == 0
        finally:
            member.kill()
            member.wait(SOON_S)


def test_the_commands_of_the_page_run_beside_the_queue_that_its_first_one_starts() -> None:
    (serve,) = blocks("### Run it", "sh")
    start, *_ = commands(serve)
    looks = [words for block in blocks("### Look at it", "sh") for words in commands(block)]
    assert start[:4] == ["python", "-m", "transfer_queue", "serve"]
    file, *options = start[4:]
    with Serving(ROOT / file, *options) as serving:
        serving.until("metrics at ")
        for words in looks:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run([sys.executable, *words[1:]], env=environment, capture_output=True, text=True, timeout=SOON_S, check=False)
            assert done.returncode == 0, done.stderr
            assert "sums" in done.stdout
        assert len(looks) == 2
        serving.process.send_signal(signal.SIGTERM)
        assert serving.ends()[0] == 0


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]


def test_no_part_of_running_or_looking_at_a_queue_loads_torch_or_asyncflow() -> None:
    modules = [str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in sorted((ROOT / "transfer_queue" / "operation").glob("*.py"))]
    names = ", ".join(name.removesuffix(".__init__") for name in [*modules, "transfer_queue.__main__", "transfer_queue.status"])
    done = python(f"{WITHOUT}import {names}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_needs_no_prometheus_but_for_metrics() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from transfer_queue.__main__ import main; sys.exit(main(['status', '--help']))"
    assert python(code).returncode == 0


def test_the_page_is_reached_from_the_example_file() -> None:
    assert "docs/examples/queue.toml" in PAGE.read_text()
    assert Path(ROOT / "docs/examples/queue.toml").exists()
