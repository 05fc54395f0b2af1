"""What ends a controller that keeps a journal, or keeps it from starting."""

from __future__ import annotations


class JournalError(RuntimeError):
    """The journal cannot be written, or cannot be believed. Nothing was acknowledged that it does not hold."""
