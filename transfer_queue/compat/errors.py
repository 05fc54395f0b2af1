"""What programs written for TransferQueue 0.1.11 catch beside ValueError, TypeError and RuntimeError."""

from __future__ import annotations


class StorageKeyNotFoundError(KeyError):
    """Rows were cleared, or overwritten again and again, between the look that made a BatchMeta and the read: look again, or leave them out."""
