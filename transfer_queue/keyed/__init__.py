"""A member's door to keyed partitions: rows found by name, without topics, leases and versions. Read `client.py`."""

from transfer_queue.keyed.client import KeyedClient, Put
from transfer_queue.keyed.found import Found, Part

__all__ = ["Found", "KeyedClient", "Part", "Put"]
