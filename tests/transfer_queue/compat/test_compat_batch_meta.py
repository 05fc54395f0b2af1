"""Tags that batches carry until their next put: each row has its own."""

from __future__ import annotations

from transfer_queue.compat.batch_meta import BatchMeta


def test_tags_of_batches_that_became_one_are_those_of_their_rows() -> None:
    """One of which has tags that were not put yet, and one has none."""
    one, other = BatchMeta([1], ["train"]), BatchMeta([2, 3], ["train"] * 2)
    one.update_custom_meta([{"a": 1}])
    both = BatchMeta.concat([one, other])
    both.update_custom_meta([{}, {"b": 2}, {"c": 3}])
    assert both._fresh == both.custom_meta == [{"a": 1}, {"b": 2}, {"c": 3}]
    both.update_custom_meta([{"d": 4}, {}, {}])
    assert one._fresh == one.custom_meta == [{"a": 1}]
