"""Where memory is shared and where it is not: decided by whether the shard's descriptor opens, with the same bytes read either way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.isolation import ISOLATED, require_namespaces

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_a_shard_with_processes_of_its_own_is_reached_by_bytes_and_one_that_only_has_another_network_by_memory(tmp_path: Path) -> None:
    require_namespaces()
    command = [*ISOLATED, sys.executable, "-m", "tests.transfer_queue.hosts", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"paths": {"0": "bytes", "1": "shared"}, "same": True}
