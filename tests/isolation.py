"""Namespaces as other hosts: where the kernel forbids them a test is skipped with the reason, and in `.ci/run` that skip is a failure."""

from __future__ import annotations

import os
import subprocess

import pytest

ISOLATED = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def require_namespaces() -> None:
    probe = subprocess.run([*ISOLATED, "true"], capture_output=True, text=True, timeout=30, check=False)
    if probe.returncode == 0:
        return
    reason = f"namespaces are forbidden here: {probe.stderr.strip()}"
    if os.environ.get("ASYNCFLOW_REQUIRE_NAMESPACES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
