"""What a scorer needs before its first row comes up by a deadline, or ends the run by name: nobody else watches it then."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


def come_up(what: str, within_s: float, work: Callable[[], None]) -> None:
    """Do `work` in a daemon thread and wait for it. `what`: in words. Raises what it raises, TimeoutError past `within_s` seconds; Python cannot end
    a thread, so it is left behind then, and ends with the process."""
    outcome: queue.Queue[BaseException | None] = queue.Queue()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, it belongs to the caller's thread
            outcome.put(error)
        else:
            outcome.put(None)

    threading.Thread(target=run, name="coming up", daemon=True).start()
    try:
        error = outcome.get(timeout=within_s)
    except queue.Empty:
        rule = f"it must be done within {within_s:g} s"
        raise TimeoutError(f"the scorer is not ready: {what} goes on, and {rule}; nothing can be scored; its log may say why") from None
    if error is not None:
        raise error
