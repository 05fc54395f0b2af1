"""What a program sees of the package TransferQueue 0.1.11: scenarios that run against that package and against ours, each in a partition of its own.

    python answer.py baseline|ours      # answers as JSON, in the last line
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

import by_batch  # noqa: F401
import by_key  # noqa: F401
import by_value  # noqa: F401
import of_metas  # noqa: F401
import on_purpose  # noqa: F401
from told import SCENARIOS, told


def answers(tq: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, function in SCENARIOS.items():
        try:
            answer = function(tq, name)
            parts = answer if isinstance(answer, list) else [answer]
            found[name] = [each if isinstance(each, str | bool | int) else told(each) for each in parts]
        except Exception as error:
            found[name] = ["RAISED", type(error).__name__, str(error)[:500], traceback.format_exc()[-1500:]]
    return found


def main(side: str) -> None:
    import transfer_queue as tq

    if side == "baseline":
        import ray

        assert "baseline" in str(tq.__file__), tq.__file__
        ray.init(num_cpus=32, include_dashboard=False, object_store_memory=100 << 20, logging_level="ERROR", log_to_driver=False)
    tq.init()
    try:
        print("\n" + json.dumps(answers(tq)))
    finally:
        tq.close()


if __name__ == "__main__":
    main(sys.argv[1])
