"""What came of asking a sampler of somebody's own. For the controller it is an input, as a request is: asked again, the sampler could say something
else, and whether it was slow no one could tell any more. So a journal keeps it, and a replay asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from transfer_queue.messages import Record


class Choice(Record, frozen=True, array_like=True):
    """Checked: it can be followed."""

    places: bytes = b""  # [n] int64, in the candidates that were shown
    fault: str = ""  # why in order is served instead; then there are no places


Ask = Callable[[], Choice]
Choices = Callable[[Ask], Choice]
"""Gets every choice, by asking or in another way, before it is followed."""


def asked(ask: Ask) -> Choice:
    """Without a journal."""
    return ask()
