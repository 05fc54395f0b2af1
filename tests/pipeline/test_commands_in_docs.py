"""Every command that README, docs, recipes and benchmarks show is run: `asyncflow train` with fewer steps, the rest as it stands.

The rest runs in a folder that looks like the project's, in which `runs/mine` goes on while a command watches it, and is over for all others;
`runs/other` is a second one to compare with.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from asyncflow.cli.main import build_parser
from asyncflow.observe.ledger_checker import check_run
from asyncflow.observe.records import EVENTS, METRICS, SUMMARY, Summary
from tests.packaging.markdown import ROOT
from tests.pipeline.doc_commands import FAR, NEAR, NOT_RUN, Command, commands, missing_lines, shortened

COMMANDS = [command for command in commands() if command.text not in NOT_RUN]
TRAINS = [command for command in COMMANDS if command.trains]
JOINS = [command for command in COMMANDS if command.joins]
OTHERS = [command for command in COMMANDS if not (command.trains or command.joins)]
LIKE_THE_PROJECT = ("asyncflow", "recipes", "docs", "benchmarks", "tests")
COMMAND_S = 90.0  # longest that one command may take


def test_the_pages_show_commands_of_every_kind() -> None:
    shown = {word for command in COMMANDS for word in command.words[:2]}
    assert {"train", "explain", "report", "watch", "size"} <= shown
    assert any("ledger_checker" in command.text for command in COMMANDS)
    assert any("transfer_queue status" in command.text for command in COMMANDS)
    assert len(TRAINS) >= 6


def test_what_is_not_run_is_still_shown_and_says_why() -> None:
    shown = {command.text for command in commands()}
    assert [text for text in NOT_RUN if text not in shown] == []
    assert all(len(reason) > 20 for reason in NOT_RUN.values())


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.words[0] == "asyncflow"], ids=lambda command: command.text)
def test_the_command_line_knows_every_option_that_is_shown(command: Command) -> None:
    if command.exit_code != 2:
        _, rest = build_parser().parse_known_args(command.words[1:])
        assert [word for word in rest if word.startswith("-") or "=" not in word] == [], command.place


# ------------------------------------------------------------ runs


def like_the_project(folder: Path) -> Path:
    for name in LIKE_THE_PROJECT:
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's folders, with keys beside them. Runs share one cache of models there."""
    folder = like_the_project(tmp_path_factory.mktemp("project"))
    assert run("python -m transfer_queue keys keys", folder).returncode == 0
    return folder


@pytest.mark.tools
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", TRAINS, ids=lambda command: command.text)
def test_a_run_of_the_docs_trains(tmp_path: Path, folder: Path, command: Command) -> None:
    done = run(shortened(command.text, tmp_path / "run"), folder)
    assert done.returncode == command.exit_code, f"{command.place}\n{done.stdout}{done.stderr}"
    if command.exit_code == 0:
        check_run(tmp_path / "run")
        assert msgspec.json.decode((tmp_path / "run" / SUMMARY).read_bytes(), type=Summary).versions == 3


@pytest.mark.tools
@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", JOINS, ids=lambda command: command.text)
def test_a_worker_of_the_docs_joins_a_run_and_leaves_with_it(tmp_path: Path, folder: Path, command: Command) -> None:
    controller = command.words[command.words.index("--controller") + 1].replace(FAR, NEAR)
    name = command.words[command.words.index("--name") + 1]
    joined = f'"joined".*"{name}#0"'
    with running(folder, tmp_path / "run", f"queue.key_file=keys/server.key queue.bind={controller}") as launcher:
        worker = start(f"env PYTHONPATH=docs/examples {command.text.replace(FAR, NEAR)}", folder)
        wait_until(lambda: re.search(joined, (tmp_path / "run" / EVENTS).read_text()) is not None, f"{name} joins")
        interrupt(launcher)
        assert worker.wait(60) == 0


# ------------------------------------------------------------ everything else


@dataclass
class Place:
    """`runs/other` is over; `runs/mine` goes on until somebody needs it to be over."""

    folder: Path
    mine: subprocess.Popen[bytes]

    def ready_for(self, command: Command) -> None:
        if command.watches:
            assert self.mine.poll() is None, "the run ended before it was looked at"
        elif self.mine.poll() is None:
            interrupt(self.mine)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = like_the_project(tmp_path_factory.mktemp("other"))
    with running(folder, folder / "runs" / "other", "run.steps=12 evaluation.every=6") as other:
        assert other.wait(60) == 0
    with running(folder, folder / "runs" / "mine", "") as mine:
        yield Place(folder, mine)


@pytest.mark.tools
@pytest.mark.timeout(240)
@pytest.mark.parametrize("command", sorted(OTHERS, key=lambda command: not command.watches), ids=lambda command: command.text)
def test_a_command_of_the_docs_does_what_they_say(place: Place, command: Command) -> None:
    place.ready_for(command)
    done = watched(command.text, place.folder) if command.follows else run(command.text, place.folder)
    said = done.stdout + done.stderr
    assert done.returncode == command.exit_code, f"{command.place}\n{said}"
    if command.output is not None:
        assert missing_lines(command.output, said) == [], f"{command.place} shows what this does not say:\n{said}"


# ------------------------------------------------------------ processes


def surroundings() -> dict[str, str]:
    """Our interpreter is `python`, our console script `asyncflow`."""
    programs = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": "140", "OMP_NUM_THREADS": "1"}


def start(text: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["bash", "-c", f"exec {text}"], cwd=folder, env=surroundings(), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = ["bash", "-c", text.replace(FAR, NEAR)]
    return subprocess.run(
        program, cwd=folder, env=surroundings(), capture_output=True, text=True, timeout=COMMAND_S, check=False, stdin=subprocess.DEVNULL
    )


def watched(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command that follows a run: it says something, and Ctrl-C ends it and not the run."""
    program = ["bash", "-c", f"exec {text}"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(program, cwd=folder, env=surroundings(), stdout=pipe, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=COMMAND_S)
    assert first.strip()
    return subprocess.CompletedProcess(program, process.returncode, first + rest, "")


@contextlib.contextmanager
def running(folder: Path, run_dir: Path, overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """A run of the smallest recipe, from its first commit on; interrupted at the end if it still goes on."""
    text = f"asyncflow train docs/examples/letters.yaml run.steps=1000000 {overrides} run.cache=cache --run-dir {run_dir}"
    process = start(f"env PYTHONPATH=docs/examples {text}", folder)
    try:
        metrics = run_dir / METRICS
        wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0), "the first commit")
        yield process
    finally:
        interrupt(process)


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C, once; returns when the run is over."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + COMMAND_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {COMMAND_S:g} s"
        threading.Event().wait(0.05)
