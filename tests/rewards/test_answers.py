"""Where an answer stands in a response, in the forms that models write it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncflow.rewards.answers import FORMS, MOST_CHARS, cleaned, find_answer, whole

FOUND = [  # response, answer
    ("48 / 2 = 24, and 48 + 24 = 72.\n#### 72", "72"),
    ("####72", "72"),
    ("#### $1,234.50", "$1,234.50"),
    ("#### 72 eggs", "72"),
    ("#### 72 of the 80 eggs", "72"),
    ("#### **72**", "**72**"),
    ("#### \\frac{1}{2}", "\\frac{1}{2}"),
    ("#### 5\nIs it? No.\n#### 6\nThank you!", "6"),
    ("So the answer is \\boxed{72}.", "72"),
    ("\\boxed{1} or rather \\[ \\boxed{\\frac{3}{4}} \\]", "\\frac{3}{4}"),
    ("$\\boxed{\\{1, 2\\}}$", "\\{1, 2\\}"),
    ("\\boxed{\\text{72 eggs}}", "\\text{72 eggs}"),
    ("\\boxed{ 7 }", "7"),
    ("\\boxed{7} so #### 8", "7"),  # boxed comes first
    ("\\boxed{7 has no end, so #### 8", "8"),
    ("She has 3 apples and buys 4, so she has 7.", "7"),
    ("It costs $1,234.50", "1,234.50"),
    ("the difference is -5", "-5"),
    ("10-3", "3"),  # a minus between two numbers is no sign
    ("a half, that is 1/2", "1/2"),
    ("or .5", ".5"),
    ("1,23 and 4", "4"),
]


@pytest.mark.parametrize(("text", "answer"), FOUND)
def test_the_answer_is_found_where_it_stands(text: str, answer: str) -> None:
    assert find_answer(text) == answer


@pytest.mark.parametrize("text", ["", "I do not know.", "####", "#### no number", "\\boxed{}", "\\boxed{never closed", "\\boxed"])
def test_what_holds_no_answer_has_none(text: str) -> None:
    assert find_answer(text) is None


def test_only_the_forms_that_count_are_looked_for() -> None:
    text = "7, \\boxed{8}\n#### 9"
    assert [find_answer(text, [form]) for form in FORMS] == ["8", "9", "9"]
    assert find_answer("so 7", ["boxed", "hashes"]) is None
    assert find_answer(text, ["hashes", "boxed"]) == "9"


CLEANED = [
    ("**72**", "72"),
    ("$72$", "72"),
    ("\\$72", "72"),
    ("-$72", "-72"),
    ("\u22125", "-5"),
    ("72.", "72"),
    ("1,234,567", "1234567"),
    ("1{,}234", "1234"),
    ("1\\!234", "1234"),
    ("(1,234)", "(1,234)"),  # a point of the plane
    ("1,2", "1,2"),
    ("12,34", "12,34"),
    ("\\frac{1}{2}", "\\frac{1}{2}"),
    ("72 eggs", "72"),
    ("$1,234.50 per day", "1234.50"),
    ("5 and 6", "5 and 6"),
    ("2 pi", "2 pi"),
    ("2x", "2x"),
    ("50%", "50"),
    ("50\\%", "50"),
]


@pytest.mark.parametrize(("answer", "text"), CLEANED)
def test_what_is_only_typography_is_taken_off(answer: str, text: str) -> None:
    assert cleaned(answer) == text


WHOLE = [("72", 72), ("-5", -5), ("+5", 5), ("72.00", 72), ("007", 7), ("72.5", None), ("7e2", None), ("", None)]


@pytest.mark.parametrize(("text", "number"), WHOLE)
def test_plain_whole_numbers_are_told_from_everything_else(text: str, number: int | None) -> None:
    assert whole(text) == number


def test_digits_of_other_scripts_are_no_plain_number() -> None:
    assert whole("٧٢") is None
    assert whole("9" * (MOST_CHARS + 1)) is None


@given(st.integers(-(10**9), 10**9), st.sampled_from(["#### {}", "\\boxed{{{}}}", "that makes {}", "#### {:,}", "\\boxed{{{:,}}}", "it is {:,}."]))
def test_every_number_is_read_back_from_every_form(number: int, form: str) -> None:
    found = find_answer(form.format(number))
    assert found is not None
    assert whole(cleaned(found)) == number


@given(st.text(alphabet="\\boxed{}#1,./-$ \n", max_size=300))
def test_any_text_has_an_answer_or_none(text: str) -> None:
    found = find_answer(text)
    assert found is None or found
    assert found is None or len(cleaned(found)) <= len(found)


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 50_000, "{" * 200_000 + "\\boxed{" + "{" * 200_000, "#" * 400_000, "1," * 200_000, "-" * 400_000, "1/" * 200_000, "9" * 400_000],
)
def test_a_response_made_to_be_slow_is_not(text: str) -> None:
    begin = time.process_time()
    find_answer(text)
    assert time.process_time() - begin < 5.0  # linear: some milliseconds; quadratic would be minutes
