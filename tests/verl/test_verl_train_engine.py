"""The recipe's train engine: loss, gradients and weights do not depend on how a global batch is cut, nor on how many ranks there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.verl.children import run
from tests.verl.tiny import make_tiny
from tests.verl.train_steps import GROUPS, SAMPLES, rows

pytestmark = [pytest.mark.verl, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def steps(tiny: Path, ranks: int, micro_groups: int, aggregation: str = "token-mean") -> dict[str, Any]:
    done = run("-m", "tests.verl.train_steps", str(tiny), str(ranks), str(micro_groups), aggregation, limit_s=140)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_two_ranks_and_single_groups_train_what_one_rank_trains_from_the_whole_batch(tiny: Path, aggregation: str) -> None:
    whole, cut = steps(tiny, 1, GROUPS, aggregation), steps(tiny, 2, 1, aggregation)
    assert whole["denominator"] == cut["denominator"] == expected(aggregation)
    assert whole["norms"] == pytest.approx(cut["norms"], rel=1e-4)
    assert whole["norms"][0] > 0
    assert learnt(whole) == pytest.approx(learnt(cut), rel=1e-4)  # Adam takes steps of its rate, half of a weight here, also where a gradient is tiny
    for name in ("pg_loss", "logprob_difference", "missing_logprobs"):
        assert whole["totals"][name] == pytest.approx(cut["totals"][name], rel=1e-3, abs=1e-4), name
    assert whole["totals"]["missing_logprobs"] == 2.0  # one in each step: masked and counted


def learnt(found: dict[str, Any]) -> dict[str, float]:
    """Without the biases of keys: attention does not depend on them, so their gradient is rounding, which Adam makes as large as any other."""
    return {name: value for name, value in found["weights"].items() if not name.endswith("k_proj.bias")}


def expected(aggregation: str) -> float:
    tokens = int(rows().jagged("response_ids").lengths.sum())
    return float(tokens - 1 if aggregation == "token-mean" else GROUPS * SAMPLES)


def test_rows_are_shared_out_evenly_and_none_is_lost() -> None:
    from recipes.verl.train import shared_out

    batch = rows()
    parts = shared_out(batch, 4)
    assert [len(share) for share in parts] == [GROUPS] * 4
    seen = sorted((int(gid), int(row)) for share in parts for gid, row in zip(share.gids, share.rows, strict=True))
    assert seen == [(gid, row) for gid in range(GROUPS) for row in range(SAMPLES)]
    for share in parts:
        for place, (gid, row) in enumerate(zip(share.gids, share.rows, strict=True)):
            index = int(gid) * SAMPLES + int(row)
            np.testing.assert_array_equal(share.jagged("response_ids")[place], batch.jagged("response_ids")[index])
    with pytest.raises(ValueError, match="16 rows do not divide among 3 ranks"):
        shared_out(batch, 3)
