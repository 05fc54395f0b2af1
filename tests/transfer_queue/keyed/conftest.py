"""The desk of the controller's tests and the journal that is killed are used here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("controller", "journal")]
