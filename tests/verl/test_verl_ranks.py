"""What rank 0 of the recipe's trainer says when another rank failed. No verl is needed: the rank that is started here fails before it asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncflow.config import RunConfig
from recipes.verl.ranks import OtherRanks, RankFailed


def test_the_rank_that_failed_first_is_named_and_not_the_collective_that_failed_for_it(tmp_path: Path) -> None:
    others = OtherRanks(RunConfig(), tmp_path, ranks=2, port=0)  # without verl's configuration no rank can begin
    others.tell("build")
    others._processes[0].wait(60)
    with pytest.raises(RankFailed, match=r"rank 1 of the trainer ended during build \(exit code 1\)") as caught, others.beside("build"):
        raise RuntimeError("Connection closed by peer")
    causes = [caught.value.__cause__, caught.value.__cause__.__context__ if caught.value.__cause__ else None]
    assert any("Connection closed by peer" in str(cause) for cause in causes)


def test_what_rank_0_alone_fails_with_stays_as_it_is(tmp_path: Path) -> None:
    others = OtherRanks(RunConfig(), tmp_path, ranks=1, port=0)
    with pytest.raises(ValueError, match="the batch is refused"), others.beside("accumulate"):
        raise ValueError("the batch is refused")
