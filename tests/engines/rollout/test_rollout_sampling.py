"""The random number of a token, the token it picks, and whose log-probability is reported."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncflow.engines.rollout.embedded.sampling import sample, uniforms

MASK = (1 << 64) - 1
ALMOST_ONE = 1.0 - 2.0**-53


def _splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


@given(seed=st.integers(0, MASK), position=st.integers(0, 1 << 20))
def test_the_number_of_a_token_is_splitmix64_of_seed_and_position(seed: int, position: int) -> None:
    expected = _splitmix64((_splitmix64(seed) + position * 0x9E3779B97F4A7C15) & MASK) >> 11
    (got,) = uniforms(np.array([seed], dtype=np.uint64), np.array([position]))
    assert got == expected * 2.0**-53
    assert 0.0 <= got < 1.0


def test_the_first_output_of_splitmix64_is_the_published_one() -> None:
    assert _splitmix64(0) == 0xE220A8397B1DCDAF


def test_numbers_are_uniform_and_differ_between_neighbouring_seeds_and_positions() -> None:
    seeds, positions = (axis.ravel() for axis in np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(100)))
    numbers = uniforms(seeds, positions)
    assert len(np.unique(numbers)) == len(numbers)
    assert np.abs(np.histogram(numbers, bins=20, range=(0, 1))[0] / len(numbers) - 0.05).max() < 0.006
    grid = numbers.reshape(100, 200)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03


def test_tokens_come_as_often_as_the_distribution_after_temperature_says() -> None:
    rows, temperature = 40_000, 1.7
    logits = np.tile(np.array([0.3, -1.0, 2.0, 0.0, -4.0], dtype=np.float32), (rows, 1))
    tokens, _ = sample(logits, np.full(rows, temperature), uniforms(np.arange(rows, dtype=np.uint64), np.full(rows, 9)))
    expected = np.exp(logits[0] / temperature) / np.exp(logits[0] / temperature).sum()
    assert np.abs(np.bincount(tokens, minlength=5) / rows - expected).max() < 0.01


LOGITS = hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(2, 37)), elements=st.floats(-80, 80, width=32))


NUMBERS = st.sampled_from([0.0, 1e-300, 0.25, 0.5, 0.999999, ALMOST_ONE])


@given(logits=LOGITS, temperature=st.floats(0.05, 4.0), u=NUMBERS)
def test_log_probabilities_are_of_the_sampled_distribution_and_no_impossible_token_comes(logits: np.ndarray, temperature: float, u: float) -> None:
    rows = len(logits)
    tokens, logprobs = sample(logits, np.full(rows, temperature), np.full(rows, u))
    scaled = logits.astype(np.float64) / temperature
    reference = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
    assert ((tokens >= 0) & (tokens < logits.shape[1])).all()
    picked = np.take_along_axis(reference, tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(logprobs, picked, rtol=1e-5, atol=1e-5)
    assert (picked > -746).all()  # exp underflows to 0 below: such a token has no probability
    assert logprobs.dtype == np.float32


@given(logits=LOGITS, data=st.data())
def test_the_order_of_rows_does_not_change_the_bits_of_a_row(logits: np.ndarray, data: st.DataObject) -> None:
    rows = len(logits)
    order = np.array(data.draw(st.permutations(range(rows))))
    temperature, u = np.linspace(0.0, 2.0, rows), uniforms(np.arange(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64))
    tokens, logprobs = sample(logits, temperature, u)
    moved_tokens, moved_logprobs = sample(logits[order], temperature[order], u[order])
    assert (moved_tokens == tokens[order]).all()
    assert moved_logprobs.tobytes() == logprobs[order].tobytes()


def test_temperature_zero_takes_the_lowest_best_token_with_the_log_probability_of_temperature_one() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 0.0]], dtype=np.float32)
    tokens, logprobs = sample(logits, np.zeros(1), np.array([0.99]))
    assert tokens.tolist() == [1]
    np.testing.assert_allclose(logprobs, [3.0 - np.log(np.exp(logits[0].astype(np.float64)).sum())], rtol=1e-6)
