"""Why a request is refused: raised inside handlers, answered as `ErrorReply` at the one place that dispatches."""

from __future__ import annotations


class RequestError(Exception):
    """A request that breaks a rule. Nothing was changed by it; the slices it carried are freed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def bad(message: str) -> RequestError:
    """A well-formed request whose content breaks a rule."""
    return RequestError("bad_request", message)
