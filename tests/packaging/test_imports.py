"""Imports point one way: recipes → asyncflow → {checkpoint_engine, transfer_queue} → shared_arena; heavy packages stay in their corners."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.imports import PACKAGES, ROOT, imported, sources, tops, tree

FORBIDDEN = {
    "transfer_queue": {"asyncflow", "checkpoint_engine", "recipes"},
    "checkpoint_engine": {"asyncflow", "transfer_queue", "recipes"},
    "shared_arena": {"asyncflow", "transfer_queue", "checkpoint_engine", "recipes"},
    "asyncflow": {"recipes"},
}
CORNERS = {  # package → folders that may import it
    "ray": ("transfer_queue/compat", "checkpoint_engine/adapters/verl.py", "recipes"),
    "tensordict": ("transfer_queue/compat", "recipes"),
    "vllm": ("checkpoint_engine/adapters", "asyncflow/engines/rollout/vllm", "recipes"),
    "verl": ("checkpoint_engine/adapters", "recipes"),
    "prometheus_client": ("asyncflow/observe/writers", "transfer_queue/operation"),
    "tensorboard": ("asyncflow/observe/writers",),
    "wandb": ("asyncflow/observe/writers",),
    "pyarrow": ("asyncflow/data",),
    "math_verify": ("asyncflow/rewards/math_child.py",),
    "torch_npu": ("checkpoint_engine/collective.py",),  # where an NPU is asked for, never at the top
}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package: str) -> None:
    wrong = {str(path.relative_to(ROOT)): found for path in sources(package) if (found := tops(path) & FORBIDDEN[package])}
    assert wrong == {}


@pytest.mark.parametrize("package", CORNERS)
def test_heavy_packages_stay_in_their_corners(package: str) -> None:
    allowed = tuple(str(ROOT / folder) for folder in CORNERS[package])
    wrong = [str(path.relative_to(ROOT)) for path in sources(*PACKAGES) if package in tops(path) and not str(path).startswith(allowed)]
    assert wrong == []


def test_the_queue_works_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import transfer_queue.client, transfer_queue.controller.server, transfer_queue.shard.server"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_the_configuration_and_the_command_line_do_not_load_torch() -> None:
    code = "import sys; import asyncflow.cli.main, asyncflow.cli.train; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_nothing_is_unpickled() -> None:
    """Whoever reaches a port or writes a file must not run code: no pickle, and torch.load only for weights."""
    for path in sources(*PACKAGES):
        assert not tops(path) & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}, path
        for call in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "load" and ast.unparse(call.func.value) == "torch":
                assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in call.keywords), f"{path}:{call.lineno}"
            if isinstance(call.func, ast.Attribute):
                assert call.func.attr not in ("recv_pyobj", "send_pyobj"), f"{path}:{call.lineno}"


def test_the_checks_see_what_they_look_for(tmp_path: Path) -> None:
    """A check that cannot fail is none."""
    folder = ROOT / "tests/packaging"
    assert "ast" in tops(folder / "imports.py")
    assert "tests.packaging.imports.ROOT" in imported(Path(__file__))
