"""What a run leaves is found by its mark and ended by its id: children of children, too, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import shared_memory

from tests.verl.leftovers import MARK, abandoned, end, processes, segments

CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"


def test_a_process_that_outlives_its_parent_is_found_by_its_mark_and_killed_by_its_id() -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    other = subprocess.Popen(sleeps, env={**os.environ, MARK: "other"})
    try:
        subprocess.run([sys.executable, "-c", CHILD], env={**os.environ, MARK: "this"}, check=True, timeout=30, stdout=subprocess.DEVNULL)
        assert len(processes("this")) == 1
        killed = end("this", patience_s=0.2)
        assert ["time.sleep(60)" in line for line in killed.values()] == [True]
        assert processes("this") == {}
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(10)


def test_a_segment_is_abandoned_when_nobody_has_it() -> None:
    before = segments()
    segment = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert segment.name not in abandoned(before)
        segment.close()
        assert segment.name in abandoned(before)
    finally:
        segment.unlink()
