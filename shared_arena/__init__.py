"""Shared memory without a name, passed to other processes by descriptor: a small library under `transfer_queue` and `checkpoint_engine`.

    here:    arena = Arena(nbytes, user="weights"); send(arena.descriptor())
    there:   Arena.attach(descriptor).array

It imports neither of them. numpy only; torch where a tensor is asked for.
"""

from shared_arena.arena import Arena
from shared_arena.claim import claimed
from shared_arena.descriptor import ArenaUnreachable, Descriptor
from shared_arena.mappings import Mappings
from shared_arena.sparse import SparseArena, sparse

__all__ = ["Arena", "ArenaUnreachable", "Descriptor", "Mappings", "SparseArena", "claimed", "sparse"]
