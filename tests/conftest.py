"""Which of the longer tests run beside others in `pytest -n 2 --dist loadgroup`, as `make test-tools` does.

Tests of stalls wait for a run that makes no progress, and nearly all of their time nothing computes. All others run one after the other as ever: what
they start fills the machine. (xdist's own groups have no effect with pytest 9.2: they add to `_nodeid`, which nobody reads any more.)
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

WAIT = ("tests/pipeline/test_stall.py",)


class Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "waits" if nodeid.partition("::")[0] in WAIT else "computes"


@pytest.hookimpl(optionalhook=True)  # also where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None
