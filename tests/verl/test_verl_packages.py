"""The environment of these tests is the one that is pinned."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution, version

import pytest
from packaging.requirements import Requirement

from tests.verl.children import ROOT

pytestmark = pytest.mark.verl
PINS = dict(line.split("==") for line in (ROOT / "constraints/verl-cpu.txt").read_text().splitlines() if "==" in line)
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}  # they break `import transformers` beside torch's CPU build


def test_the_pins_are_what_is_tested_here() -> None:
    found = {package: distribution(package).version.partition("+")[0] for package in PINS}
    assert found == PINS


def test_the_pins_are_what_verl_and_we_ask_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["verl"], *(distribution("verl").requires or [])]
    for text in asked:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            assert requirement.specifier.contains(version(requirement.name), prereleases=True), text


@pytest.mark.parametrize("package", sorted(LEFT_OUT))
def test_what_breaks_transformers_is_not_installed(package: str) -> None:
    with pytest.raises(PackageNotFoundError):
        version(package)
