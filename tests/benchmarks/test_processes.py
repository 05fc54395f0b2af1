"""What the benchmarks read off /proc."""

from __future__ import annotations

import os
import time

from benchmarks.processes import idle_share, memory_mib, own_share, usage, with_library

GONE = {"gone": 2**22 + 1}  # above the largest pid


def test_a_process_that_computes_is_seen_and_one_that_is_gone_is_left_out() -> None:
    me = {"me": os.getpid()}
    before = usage(me | GONE)
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = usage(me | GONE)
    assert after.processes_s.keys() == {"me"}
    assert after.processes_s["me"] - before.processes_s["me"] >= 0.15
    assert 0.0 < own_share(before, after) <= 1.1  # both count in ticks of 10 ms
    assert 0.0 <= idle_share(before, after) <= 1.0


def test_memory_and_libraries_of_processes() -> None:
    assert memory_mib([os.getpid()]) > 5
    assert memory_mib(GONE.values()) == 0
    assert with_library({"me": os.getpid()} | GONE, "python") == ["me"]
