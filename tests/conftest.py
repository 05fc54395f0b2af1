"""Which of the longer tests may run beside others (`pytest -n 2 --dist loadgroup`, as in `make test-tools`).

Tests of stalls wait for a run that makes no progress, and nearly all of their time nothing computes: they are a group of their own (`xdist_group`).
All others are one group, so they run one after the other as ever: what they start fills the machine.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("computes"))
