"""verl on machines without an accelerator: a platform "cpu" and what verl 0.9.1 needs mended for it. For tests and laptops.

Nothing of it is in force unless VERL_PLATFORM=cpu says so, in the driver and in every process of Ray. It knows verl only, not AsyncFlow. A mend is a
file: the module of verl that it waits for and what it does to it once that is imported.
"""

from __future__ import annotations

import os

from recipes.verl.platform import backend_string, engines, old_policy, plain_weights, value_head
from recipes.verl.platform.after_import import after_import

MENDS = (backend_string, engines, old_policy, plain_weights, value_head)


def register() -> None:
    """Make the platform known to verl and, where it was asked for, put the mends in force. May be called again."""
    from recipes.verl.platform import cpu  # noqa: F401  # verl's registry has it from here on

    if asked_for():
        for mend in MENDS:
            after_import(mend.WAITS_FOR, mend.mend)


def asked_for() -> bool:
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"
