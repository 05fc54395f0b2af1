"""Arenas of other processes that stay mapped between uses: mapping and faulting pages in costs more than the copy."""

from __future__ import annotations

from collections.abc import Collection

from shared_arena.arena import Arena
from shared_arena.descriptor import Descriptor


class Mappings:
    """The `most` arenas that were used last."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._by_nonce: dict[bytes, Arena] = {}

    def attach(self, descriptor: Descriptor) -> Arena:
        """The arena of `descriptor`, writable. Raises ArenaUnreachable."""
        arena = self._by_nonce.pop(descriptor.nonce, None) or Arena.attach(descriptor, writable=True)
        arena.refresh()
        self._by_nonce[descriptor.nonce] = arena
        while len(self._by_nonce) > self._most:
            self._by_nonce.pop(next(iter(self._by_nonce))).close()
        return arena

    def keep_only(self, nonces: Collection[bytes]) -> None:
        """Let go of all others: their owner has given them up, and a mapping is what keeps their pages."""
        for nonce in self._by_nonce.keys() - set(nonces):
            self._by_nonce.pop(nonce).close()

    def close(self) -> None:
        while self._by_nonce:
            self._by_nonce.popitem()[1].close()
