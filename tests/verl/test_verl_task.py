"""The recipe's task over rows that verl's dataset class may give. No verl is needed: the rows stand in for it."""

from __future__ import annotations

from typing import Any

import pytest

from asyncflow.data.parquet import DataError
from recipes.verl.task import VerlTask


class Filtered(VerlTask):
    """Over files of which verl's filter of long prompts left nothing."""

    def _dataset(self, files: Any, training: bool, most: int) -> Any:
        return []


@pytest.mark.parametrize("shuffle", [True, False])
def test_files_without_a_row_that_fits_are_named_with_a_fix(shuffle: bool) -> None:
    data = {"train_files": "long.parquet", "train_max_samples": -1, "shuffle": shuffle}
    with pytest.raises(DataError, match=r"data\.train_files = long\.parquet: no row is left .* Fix: .*data\.max_prompt_length"):
        Filtered(1, {"trainer": {"device": "cuda"}, "data": data}).prompt(0)
