"""`asyncflow explain` and `train --dry-run`: quick, without torch, the same in text and JSON, and nothing is started."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asyncflow.cli.main import main
from asyncflow.config.explain.explanation import Explanation, explain
from asyncflow.config.load import load
from tests.config.recipes import RUNNABLE

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "recipes/quickstart")
OF_IMPORTING = 3.0  # times the processor time that importing the libraries takes

WATCHED = """
import sys
HARMLESS = ("/dev/null",)
def watch(event, args):
    # whatever starts a process, makes a directory, writes a file or opens a port
    writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+") and str(args[0]) not in HARMLESS
    if writes or event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename", "os.remove",
                           "socket.bind", "socket.connect", "_posixsubprocess.fork_exec"):
        print("DID", event, args, file=sys.stderr)
        raise RuntimeError(event)
sys.addaudithook(watch)
from asyncflow.cli.main import main
code = main(sys.argv[1:])
print("LOADED", *[name for name in ("torch", "transformers", "reasoning_gym", "vllm", "ray") if name in sys.modules], file=sys.stderr)
sys.exit(code)
"""


def watched(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """In a process that may neither start nor write anything."""
    command = [sys.executable, "-B", "-c", WATCHED, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/nowhere", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments", [("explain",), ("explain", "--json"), ("train", "--dry-run"), ("train", "--dry-run", "--run-dir", "mine")])
def test_nothing_is_started_written_or_loaded_that_is_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = watched(arguments[0], QUICKSTART, *arguments[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == ["LOADED"]
    assert "quickstart" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_is_probably_not_meant_stands_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Where a person looks after a page of text, and just before the last word."""
    assert main(["explain", QUICKSTART, "rollout.slots=60"]) == 0
    *_, warnings, last = capsys.readouterr().out.strip().split("\n\n")
    assert warnings.startswith("Probably not meant")
    assert "rollout.slots=64" in warnings
    assert last == "`asyncflow train` would start this"


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("staleness=none", "staleness=null"),
        ("staleness=unbounded", "staleness=null"),
        ("flow.budget_bytes=1GB", "flow.budget_bytes=1000000000"),
        ("flow.budget_bytes=512MiB", "flow.budget_bytes=536870912"),
        ("staleness=two", "staleness=2"),
    ],
)
def test_a_fix_is_what_was_probably_meant(override: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", QUICKSTART, override]) == 2
    assert capsys.readouterr().err.endswith(f"Fix: {fix}\n")


def test_it_takes_less_than_a_second_of_the_processor(tmp_path: Path) -> None:
    """A second where importing the libraries takes 0.33 s; elsewhere as much more or less. The best of three: the others were slowed down."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}  # as on a user's machine: compiled once
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    explaining = [sys.executable, "-m", "asyncflow.cli.main", "explain", QUICKSTART]
    importing = [sys.executable, "-c", "import hydra, msgspec, numpy, rich.table, yaml"]
    cpu_s(explaining, environment)
    cpu_s(importing, environment)
    ratios = [cpu_s(explaining, environment) / cpu_s(importing, environment) for _ in range(3)]
    assert min(ratios) < OF_IMPORTING, ratios


def cpu_s(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_watch_sees_what_it_looks_for(tmp_path: Path) -> None:
    """A real run is stopped at the first thing that it makes: a check that cannot fail is none."""
    done = watched("train", QUICKSTART, "--run-dir", "mine", cwd=tmp_path)
    assert done.returncode != 0
    assert "DID os.mkdir" in done.stderr


def test_a_dry_run_prints_what_explain_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", QUICKSTART, "staleness=4"]) == 0
    explained = capsys.readouterr().out
    assert main(["train", QUICKSTART, "--dry-run", "staleness=4"]) == 0
    assert capsys.readouterr().out == explained
    assert "(4 + 1) × 32 = 160 groups" in explained


def test_json_is_one_object_that_reads_back_as_the_same_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", QUICKSTART, "--json", "batch_size=16"]) == 0
    out = capsys.readouterr().out
    assert msgspec.json.decode(out.encode(), type=Explanation) == explain(load(QUICKSTART, ["batch_size=16"]))
    assert isinstance(json.loads(out), dict)


@pytest.mark.parametrize("recipe", [QUICKSTART, str(ROOT / "tests/config/recipe_64_devices.yaml")])
def test_piped_text_is_plain_and_holds_every_number_of_the_json(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", recipe]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert main(["explain", recipe, "--json"]) == 0
    shown = "".join(text.split())
    for path, value in leaves(json.loads(capsys.readouterr().out)):
        if isinstance(value, str | int) and not isinstance(value, bool) and ".devices" not in path and not path.endswith(UNSHOWN):
            assert "".join(str(value).split()) in shown or wrapped(str(value), text), path


UNSHOWN = (".code", ".processes.kind", ".duty_s")  # for programs; the last two stand in sentences, in other words


def leaves(value: object, path: str = "") -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [leaf for key, entry in value.items() for leaf in leaves(entry, f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for entry in value for leaf in leaves(entry, path)]
    return [(path, value)]


def wrapped(value: str, text: str) -> bool:
    """A sentence that stands in a cell of several lines: all of its words are there."""
    return all(word in text for word in value.split())


def test_what_train_would_refuse_stands_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(ROOT / "tests/config/recipe_64_devices.yaml")]) == 0
    end = capsys.readouterr().out.partition("`asyncflow train` would refuse this")[2]
    assert "resources.trainer.workers = 8" in end


def test_a_recipe_without_a_task_is_explained_and_one_with_a_wrong_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RUNNABLE)
    assert main(["explain", str(recipe), "task.path=''"]) == 0
    assert "no task is named" in capsys.readouterr().out
    assert main(["explain", str(recipe), "task.path=asyncflow.data.number_sorting:NumberSortin"]) == 2
    assert "did you mean 'NumberSorting'?" in capsys.readouterr().err


def test_a_dry_run_of_what_train_would_refuse_says_so_like_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "tests/config/recipe_64_devices.yaml")
    assert main(["explain", recipe]) == 0
    assert main(["train", "--dry-run", recipe]) == main(["train", recipe, "--run-dir", f"{tmp_path}/run"]) == 2
    *_, dry, real = capsys.readouterr().err.strip().splitlines()
    assert dry == real
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "events.jsonl").touch()
    assert main(["train", "--dry-run", QUICKSTART, "--run-dir", f"{tmp_path}/used"]) == 2
    assert "it holds a run already" in capsys.readouterr().err
