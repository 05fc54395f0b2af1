"""Weights from a trainer to everyone who computes with them: whole and verified, or not at all. A library of its own.

Names are resolved on first use: processes that only name versions (a controller) import `weights_id` and must not pay for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoint_engine.digest import DigestMismatch, weights_digest
    from checkpoint_engine.engine import CheckpointEngine, CollectiveEngine
    from checkpoint_engine.fanout import SyncReport
    from checkpoint_engine.publisher import Publisher
    from checkpoint_engine.publisher_client import PublisherClient, PublisherGone, PublishRefused
    from checkpoint_engine.receiver import NotInCache, Receiver
    from checkpoint_engine.weights_id import WeightsId

_HOMES = {
    "CheckpointEngine": "engine",
    "CollectiveEngine": "engine",
    "DigestMismatch": "digest",
    "NotInCache": "receiver",
    "PublishRefused": "publisher_client",
    "Publisher": "publisher",
    "PublisherClient": "publisher_client",
    "PublisherGone": "publisher_client",
    "Receiver": "receiver",
    "SyncReport": "fanout",
    "WeightsId": "weights_id",
    "weights_digest": "digest",
}

__all__ = [
    "CheckpointEngine",
    "CollectiveEngine",
    "DigestMismatch",
    "NotInCache",
    "PublishRefused",
    "Publisher",
    "PublisherClient",
    "PublisherGone",
    "Receiver",
    "SyncReport",
    "WeightsId",
    "weights_digest",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
