"""Settings of the TransferQueue's processes."""

from __future__ import annotations

from asyncflow.config.settings import Settings


class QueueSettings(Settings, frozen=True):
    """Where the controller listens, how many shards hold the bytes, and the keys."""

    shards: int = 1  # Processes that hold tensor bytes.
    shard_bytes: int = 1 << 30  # Most bytes that one shard stores.
    keep_bytes: int = 256 << 20  # Most free memory that a shard keeps warm for what is written next; the rest goes back to the system.
    journal: bool = True  # A killed controller comes back; costs 8 to 14 % of its time (`benchmarks/journal.py`); false: its death ends the run.
    bind: str = "tcp://127.0.0.1:0"  # Where the controller listens; port 0 takes a free one. Anything but loopback needs `key_file`.
    shard_bind: str = "tcp://127.0.0.1:0"  # Where shards listen, likewise.
    key_file: str | None = None  # Server key file of `python -m transfer_queue keys DIR`; null: loopback without keys.
    client_key_file: str | None = None  # Client key file of the same directory, handed to workers; null: `client.key` beside `key_file`.
