"""A tally says of integers what numpy says of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.observe.tally import Tally


@given(st.lists(st.lists(st.integers(-5, 9), max_size=20), min_size=1, max_size=5), st.floats(0, 100))
def test_a_tally_equals_numpy_over_all_that_was_added(parts: list[list[int]], percent: float) -> None:
    tally, values = Tally(), np.array([value for part in parts for value in part], dtype=np.int64)
    for part in parts:
        tally.add(np.array(part, dtype=np.int32))
    assert len(tally) == len(values)
    if len(values):
        assert (tally.min(), tally.max()) == (values.min(), values.max())
        assert tally.mean() == pytest.approx(values.mean())
        assert tally.percentile(percent) == pytest.approx(np.percentile(values, percent))


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was counted"):
        Tally().percentile(50)
