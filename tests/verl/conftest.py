"""Where there is no verl, as in `make test`, tests that import its packages at their top are not even collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_compat_*.py"] if find_spec("tensordict") is None else []
