"""Errors as they reach another process, or a copy."""

from __future__ import annotations

import copy
import pickle

import pytest

from transfer_queue.errors import Gone, KeysChanged, QueueError, QueueGone, QueueRefused, QueueTimeout

CHANGED = KeysChanged("train", ["a"], 3)
ERRORS = [CHANGED, QueueError("capacity", "no room"), Gone([3, 1]), QueueTimeout("late"), QueueGone("ended"), QueueRefused("keys")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copy_of_an_error_says_the_same(error: Exception) -> None:
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
        assert getattr(again, "code", None) == getattr(error, "code", None)
        assert getattr(again, "gids", None) == getattr(error, "gids", None)
