"""The simulated runs of the controller's tests are run here too, with a journal, which lies in memory."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "controller"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a file system in memory where there is one: nothing here looks at what a disk does."""
    shm = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="journal-", dir=shm if shm.is_dir() else None))
    yield path
    for thread in threading.enumerate():  # of a controller that was left where it stood, as a kill leaves it
        if thread.name == "snapshot":
            thread.join(10.0)
    shutil.rmtree(path)
