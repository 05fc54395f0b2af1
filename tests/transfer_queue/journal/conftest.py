"""The simulated runs of the controller's tests are run here too, with a journal."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "controller"))
