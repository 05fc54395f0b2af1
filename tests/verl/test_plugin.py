"""verl finds our plugin by its entry point, in every process, and says so when it cannot be used."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest

from tests.verl.children import ROOT, run, said

pytestmark = pytest.mark.verl
BASELINE = ROOT / ".venv-verl/baseline"


def test_the_entry_point_is_there_and_importing_verl_loads_it() -> None:
    assert "recipes.verl.plugin" in {entry.value for entry in entry_points(group="verl.plugins")}
    assert said("import verl, sys; print('recipes.verl.plugin' in sys.modules)") == "True"


def test_on_another_platform_a_trainer_is_added_to_verl_and_nothing_is_changed() -> None:
    code = """
import verl, sys
hooks = sys.modules["recipes.verl.platform.after_import"]
print({name: [hook.__module__ for hook in each] for name, each in hooks._WAITING.items()})"""
    assert said(code, VERL_PLATFORM="") == "{'verl.trainer.ppo.v1.trainer_base': ['recipes.verl.registered']}"


@pytest.mark.parametrize(("name", "version"), [("TransferQueue", "0.1.11"), ("vllm", "0.28.0")])
def test_the_names_that_verl_asks_for_are_stubs_without_a_module(name: str, version: str) -> None:
    found = distribution(name)
    assert found.version == version
    assert {path.parts[0] for path in found.files or []} == {f"{name.lower()}-{version}.dist-info"}
    assert said("import transfer_queue; print(transfer_queue.__file__)") == str(ROOT / "transfer_queue/__init__.py")


def test_the_real_package_before_ours_on_the_path_is_told_at_error_level() -> None:
    """The folder that baseline runs put there."""
    code = f"import sys; sys.path.insert(0, {str(BASELINE)!r}); import verl"
    done = run("-c", code)
    assert done.returncode == 0
    assert "AsyncFlow's plugin for verl is not loaded: `import transfer_queue` finds" in done.stderr + done.stdout
    assert "pip uninstall -y TransferQueue" in done.stderr + done.stdout


def test_files_of_the_real_package_among_ours_end_the_import_of_compat(tmp_path: Path) -> None:
    """As pip leaves it: one folder, two packages. An ImportError would be taken for "not installed"."""
    shutil.copytree(ROOT / "transfer_queue", tmp_path / "transfer_queue", ignore=shutil.ignore_patterns("__pycache__"))
    for path in BASELINE.rglob("*"):
        target = tmp_path / path.relative_to(BASELINE)
        if path.is_file() and not target.exists() and path.relative_to(BASELINE).parts[0].startswith("transfer"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    done = run("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import transfer_queue.compat")
    assert done.stderr.splitlines()[-1].startswith(f"RuntimeError: {tmp_path}/transfer_queue holds files of AsyncFlow and of TransferQueue 0.1.11")
