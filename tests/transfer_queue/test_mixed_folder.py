"""Two packages that write one folder are found out by name, wherever each of them lies on the path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from constraints.stub_wheel import write_stub

ROOT = Path(__file__).parents[2]


def distribution(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """As pip leaves it in `site`: the files, and a dist-info that lists them."""
    info = site / f"{name.lower()}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


def ours(site: Path) -> None:
    for package in ("transfer_queue", "checkpoint_engine", "recipes"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))


def asked(code: str, *path: Path) -> str:
    """The last line of what Python says of `code` with nothing but these folders, and what is installed, on the path; "" where it ends well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True, timeout=60)
    return done.stderr.splitlines()[-1] if done.returncode else ""


def test_a_folder_of_ours_alone_is_fine_and_so_is_a_stub_of_the_other_name(tmp_path: Path) -> None:
    ours(tmp_path)
    shutil.unpack_archive(write_stub(tmp_path / "wheels", "TransferQueue==0.1.11"), tmp_path, "zip")
    assert (tmp_path / "transferqueue-0.1.11.dist-info").is_dir()
    assert asked("import transfer_queue.compat; from recipes.verl.folders import check_folders; check_folders()", tmp_path) == ""


@pytest.mark.parametrize("code", ["import transfer_queue.compat", "from recipes.verl.folders import check_folders; check_folders()"])
def test_files_of_two_packages_in_one_folder_are_refused_with_both_names(tmp_path: Path, code: str) -> None:
    ours(tmp_path)
    distribution(tmp_path, "TransferQueue", "0.1.11", {"transfer_queue/controller.py": "hidden = True\n"})
    said = asked(code, tmp_path)
    assert said.startswith(f"RuntimeError: {tmp_path}/transfer_queue holds files of AsyncFlow and of TransferQueue 0.1.11")
    assert "pip uninstall -y TransferQueue; pip install --force-reinstall --no-deps asyncflow" in said


def test_a_package_of_the_same_name_that_hides_ours_is_refused(tmp_path: Path) -> None:
    """An editable installation lies behind site-packages: none of our code would run."""
    hiding, behind = tmp_path / "site", tmp_path / "clone"
    ours(behind)
    distribution(hiding, "TransferQueue", "0.1.11", {"transfer_queue/__init__.py": "", "transfer_queue/controller.py": ""})
    said = asked("from recipes.verl.folders import check_folders; check_folders()", hiding, behind)
    assert said.startswith(f"RuntimeError: `import transfer_queue` finds {hiding}/transfer_queue")
    assert "none of AsyncFlow's" in said, "an editable installation may find our modules in the other package, and then it can name it"
    assert "pip uninstall -y TransferQueue; pip install --force-reinstall --no-deps asyncflow" in said


def test_another_librarys_checkpoint_engine_is_refused_by_its_name(tmp_path: Path) -> None:
    hiding, behind = tmp_path / "site", tmp_path / "clone"
    ours(behind)
    distribution(hiding, "checkpoint-engine", "0.5.0", {"checkpoint_engine/__init__.py": "", "checkpoint_engine/ps.py": ""})
    said = asked("from recipes.verl.folders import check_folders; check_folders()", hiding, behind)
    assert said.startswith(f"RuntimeError: `import checkpoint_engine` finds {hiding}/checkpoint_engine, which checkpoint-engine 0.5.0 wrote")


def test_what_a_removed_package_leaves_is_refused_and_it_is_not_called_missing(tmp_path: Path) -> None:
    """pip removed the other package, and with it the __init__.py that both had."""
    ours(tmp_path)
    (tmp_path / "checkpoint_engine/__init__.py").unlink()
    environment_alone = "import sys; sys.path[:] = [entry for entry in sys.path if 'site-packages' not in entry]; "
    said = asked(f"{environment_alone}from recipes.verl.folders import check_folders; check_folders()", tmp_path)
    assert said.startswith("RuntimeError: `import checkpoint_engine` finds no checkpoint_engine/__init__.py")
