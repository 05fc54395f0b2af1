"""Which random stream a sample draws from: a pure function of (run, prompt, sample); who generates it, when, and beside whom does not matter."""

from __future__ import annotations

import xxhash


def sample_seed(run_seed: int, gid: int, sample: int) -> int:
    """64-bit seed of sample `sample` (0-based) of prompt `gid` in a run. The engine derives a token's number from (this, absolute position)."""
    return xxhash.xxh3_64_intdigest(f"{run_seed}/{gid}/{sample}".encode())
