"""Distributions that are only a name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from constraints.stub_wheel import write_stub


def test_a_stub_is_installed_by_pip_and_brings_a_name_and_a_version_and_nothing_else(tmp_path: Path) -> None:
    wheel = write_stub(tmp_path / "wheels", "TransferQueue==0.1.11")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(tmp_path / "site"), str(wheel)], check=True, timeout=100)
    (info,) = (tmp_path / "site").iterdir()
    found = Distribution.at(info)
    assert (found.metadata["Name"], found.version) == ("TransferQueue", "0.1.11")
    assert "Private :: Do Not Upload" in found.metadata.get_all("Classifier", [])
    assert {path.split("/")[0] for path in zipfile.ZipFile(wheel).namelist()} == {"transferqueue-0.1.11.dist-info"}


def test_a_stub_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = (write_stub(tmp_path / folder, "vllm==0.28.0").read_bytes() for folder in "ab")
    assert first == second


@pytest.mark.parametrize("asked", ["vllm", "vllm>=1", "../x==1", ""])
def test_what_is_no_name_with_a_version_is_refused(tmp_path: Path, asked: str) -> None:
    with pytest.raises(ValueError, match="is not NAME==VERSION"):
        write_stub(tmp_path, asked)
