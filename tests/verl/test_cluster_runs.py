"""The cluster benchmark's AsyncFlow configurations explain themselves, without a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.verl]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("split", ["52_2_2_8", "48_16"])
def test_a_run_explains_itself(split: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "MODEL": str(tmp_path), "DATA": str(tmp_path), "PYTHONPATH": str(ROOT)}
    script = ROOT / f"benchmarks/cluster/runs/asyncflow_{split}.sh"
    done = subprocess.run(["bash", str(script), "--explain"], env=environ, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "`asyncflow train` would start this" in done.stdout
