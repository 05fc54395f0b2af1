"""Opens a page in headless Chromium, without any network, and tells what became of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
REQUIRE = "ASYNCFLOW_REQUIRE_BROWSER"  # where it is set, a missing browser is a failure and not a reason to skip
OPEN_S = 60


class Opened(msgspec.Struct):
    """A page as it stands after its scripts ran."""

    dom: str
    console: list[str]  # what scripts and the browser wrote there, errors included

    def data(self, name: str) -> str | None:
        """`data-NAME` of the root element."""
        found = re.search(rf'<html[^>]* data-{name}="([^"]*)"', self.dom)
        return found.group(1) if found is not None else None


def browser() -> str:
    """Path of the browser; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        message = f"none of {', '.join(NAMES)} is on PATH: the page was not opened"
        pytest.fail(message) if os.environ.get(REQUIRE) else pytest.skip(message)
    return found


def open_page(page: Path, profile: Path, *, width: int = 1400, screenshot: Path | None = None) -> Opened:
    """Run the page's scripts. `profile`: an empty directory for the browser's own files."""
    what = ["--dump-dom"] if screenshot is None else [f"--screenshot={screenshot}"]
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--virtual-time-budget=3000", f"--window-size={width},1000"]
    done = subprocess.run([*command, *what, page.resolve().as_uri()], capture_output=True, text=True, timeout=OPEN_S)
    console = [line.partition("CONSOLE")[2] for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Opened(done.stdout, console)
