"""The fork server finds its modules where the launcher finds them.

Python starts it by `python -c`, which would look into the current directory first: a file there that is named like a library, or an older checkout,
would be imported in its place, silently. So the server is started with our own search path in its environment. It imports this module first, which
takes that back: what the run's processes start in their turn gets the environment as it was.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BEFORE = "ASYNCFLOW_ENVIRONMENT_BEFORE"
NAMES = ("PYTHONPATH", "PYTHONSAFEPATH")


@contextmanager
def same_path() -> Iterator[None]:
    """Whoever is started meanwhile searches where we do."""
    before = {name: os.environ.get(name) for name in NAMES}
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)  # "" is the current directory
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ[BEFORE] = json.dumps(before)
    try:
        yield
    finally:
        restore()


def restore() -> None:
    """The environment as `same_path` found it; nothing where it was never changed."""
    for name, value in json.loads(os.environ.pop(BEFORE, "{}")).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


restore()
