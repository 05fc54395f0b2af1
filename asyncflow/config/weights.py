"""Settings of the weights' way from the trainer to everybody who computes with them."""

from __future__ import annotations

from typing import Literal

from asyncflow.config.settings import Settings


class WeightsSettings(Settings, frozen=True):
    """How published weights travel and when they are exported."""

    transport: Literal["collective", "pull"] = "collective"  # Broadcast to all receivers at once, or each pulls; joiners pull always.
    backend: Literal["auto", "gloo", "nccl", "hccl"] = "auto"  # Of the broadcast; auto: by all devices. Without one for nccl or hccl: pull.
    bucket_bytes: int = 1 << 20  # Size of one of the two buckets of a transfer.
    group_timeout_s: float = 10.0  # Rendezvous and operations of the broadcast group give up after this, at most 10.
    cache_slots: int = 1  # Versions of the publisher that readers may still hold while the next one is written.
    receiver_slots: int = 1  # Versions in the memory of a receiver by broadcast. 1: the next one takes the place of the loaded one; 2: beside it.
    bind: str = "tcp://127.0.0.1:0"  # Where the publisher listens; anything but loopback needs `queue.key_file`.
    export_every: int | None = 50  # Versions between two exports of Hugging Face files; null: the last one only.
