"""A process that is asked for one measurement at a time: one JSON object a line, in and out.

The standard library alone: peers run it in environments of their own. What libraries print goes to stderr, so that stdout holds answers only.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import Any

GRACE_S = 15.0  # who asks is gone: a handler that hangs gets no longer


def answer(owner: Any) -> None:
    """Call `owner.OP(**arguments)` for every `{"op": OP, …}` until stdin ends.

    A handler returns a dict or None; one that raises ends the process.
    """
    lines: queue.Queue[str] = queue.Queue(maxsize=64)
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        while line := lines.get():
            request = json.loads(line)
            try:
                _tell(answers, getattr(owner, request.pop("op"))(**request) or {})
            except Exception as error:  # told to who asked, then raised: it ends this process
                _tell(answers, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
                raise


def _tell(answers: Any, reply: dict[str, Any]) -> None:
    answers.write(json.dumps(reply) + "\n")
    answers.flush()


def _listen(lines: queue.Queue[str]) -> None:
    """Requests, then an empty line for the end; a process that is still there `GRACE_S` later hangs and is ended."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    threading.Event().wait(GRACE_S)
    os._exit(1)
