"""math-verify beside us: what counts as equal, and that nothing which stands in an answer hangs, fills or ends the scorer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncflow.rewards import math_judge, math_process
from asyncflow.rewards.deadline import DeadlineScorer
from asyncflow.rewards.math_child import Question, Reply
from asyncflow.rewards.math_judge import MathJudge
from asyncflow.rewards.math_process import CompareBroken, CompareFailed, MathProcess
from asyncflow.rewards.verdict import Verdict

TOWER = "9^{9^{9^{9}}}"  # sympy computes it, for ever and in C
RIGHT = [  # truth, response
    ("72", "#### 72"),
    ("72", "\\boxed{72}"),
    ("72", "\\boxed{72.0}"),
    ("72", "#### $72.00"),
    ("1234", "#### 1,234"),
    ("1,234", "\\boxed{1234}"),
    ("72", "\\boxed{72\\text{ eggs}}"),
    ("72", "\\boxed{\\$72}"),
    ("0.5", "\\boxed{\\frac{1}{2}}"),
    ("\\frac{1}{2}", "#### 0.5"),
    ("1/2", "\\boxed{\\dfrac12}"),
    ("3/4", "so it is 3/4"),
    ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
    ("x+1", "\\boxed{1+x}"),
    ("(x+1)^2", "\\boxed{x^2+2x+1}"),
    ("\\{1, 2\\}", "\\boxed{\\{2, 1\\}}"),
    ("(1, 2)", "\\boxed{(1,2)}"),
    ("50\\%", "\\boxed{50\\%}"),
    ("50", "#### 50%"),
    ("50%", "\\boxed{50}"),
    ("72", "\\boxed{72 dollars}"),
    ("72", "\\boxed{x = 72}"),
    ("72", "\\boxed{\\textbf{72}}"),
    ("72", "#### 8*9"),
    ("72", "#### The answer is 72 km/h"),
    ("1.5", "\\boxed{1\\frac{1}{2}}"),
    ("3:30", "\\boxed{3:30}"),
    ("\\text{even}", "\\boxed{\\text{even}}"),
]
WRONG = [
    ("72", "#### 71"),
    ("72", "#### -72"),
    ("72", "\\boxed{7.2}"),
    ("72", "\\boxed{720}"),
    ("1/2", "\\boxed{\\frac{1}{3}}"),
    ("0.5", "#### 50%"),
    ("0.33", "\\boxed{1/3}"),
    ("72", "\\boxed{72,000}"),
    ("5", "\\boxed{5 and 6}"),
    ("72", "\\boxed{__import__('os').abort()}"),
    ("(1, 2)", "\\boxed{(2, 1)}"),
    ("x+1", "\\boxed{x-1}"),
    ("\\text{even}", "\\boxed{\\text{odd}}"),
]


@pytest.fixture(scope="module")
def judge() -> Iterator[MathJudge]:
    """A generous deadline: what is slow here is the machine."""
    judge = MathJudge(deadline_s=60.0)
    yield judge
    judge.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[MathJudge]:
    judge = MathJudge(deadline_s=5.0)
    yield judge
    judge.close()


@pytest.mark.parametrize(("truth", "text"), RIGHT)
def test_answers_that_mean_the_same_are_right(judge: MathJudge, truth: str, text: str) -> None:
    assert judge([truth], text) is Verdict.RIGHT


@pytest.mark.parametrize(("truth", "text"), WRONG)
def test_answers_that_mean_something_else_are_wrong(judge: MathJudge, truth: str, text: str) -> None:
    assert judge([truth], text) is Verdict.WRONG


def test_any_of_several_truths_will_do(judge: MathJudge) -> None:
    assert judge(["7", "\\frac{1}{2}"], "#### 0.5") is Verdict.RIGHT
    assert judge(["7", "8"], "#### 8") is Verdict.RIGHT
    assert judge(["7", "\\frac{1}{2}"], "#### 0.4") is Verdict.WRONG


def test_a_response_without_an_answer_or_with_one_of_any_length_is_said_to_be_that(judge: MathJudge) -> None:
    assert judge(["72"], "I do not know") is Verdict.NO_ANSWER
    assert judge(["72"], "#### **") is Verdict.NO_ANSWER
    assert judge(["72"], f"#### {'9' * 600}") is Verdict.TOO_LONG
    assert judge(["72"], f"\\boxed{{{'1+' * 400}1}}") is Verdict.TOO_LONG


@settings(deadline=None, max_examples=60)
@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6) | st.just(None))
def test_what_is_decided_without_math_verify_is_what_it_would_say(judge: MathJudge, truth: int, other: int | None) -> None:
    answer = truth if other is None else other
    ours = judge([str(truth)], f"#### {answer}")
    assert (ours is Verdict.RIGHT) == judge._process.equal([str(truth)], str(answer)) == (truth == answer)


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="0123456789+-*/^_{}()[]\\,.= $%xyfracsqtinlog", max_size=40))
def test_whatever_stands_in_a_box_gets_a_verdict(hasty: MathJudge, answer: str) -> None:
    assert isinstance(hasty(["72"], f"\\boxed{{{answer}}}"), Verdict)


def test_a_comparison_that_hangs_is_ended_counted_and_harms_nothing_after_it(hasty: MathJudge) -> None:
    assert hasty(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
    first = hasty._process.pid
    assert first is not None
    assert hasty(["0.5"], f"\\boxed{{{TOWER}}}") is Verdict.TIMEOUT
    assert not alive(first)
    assert hasty(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT


def test_a_process_that_says_nothing_is_ended_at_the_deadline_and_replaced() -> None:
    process = MathProcess(0.5, 2 << 30)
    try:
        process._start()
        first = process.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(TimeoutError, match=r"no answer within 0.5 s"):
            process.equal(["1"], "1/2")
        assert not alive(first)
        process._deadline_s = 60.0
        assert process.equal(["1/2"], "0.5")
        assert process.pid not in (None, first)
    finally:
        process.close()


def test_a_process_that_is_killed_in_a_comparison_costs_that_one_a_zero(judge: MathJudge, caplog: pytest.LogCaptureFixture) -> None:
    assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
    pid = judge._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    killer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
    killer.start()
    assert judge(["0.5"], "\\boxed{1/3}") is Verdict.FAILED
    killer.join()
    assert "exit code -9" in caplog.text
    assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT


def test_a_process_that_died_while_nobody_asked_it_costs_nobody_a_zero(judge: MathJudge) -> None:
    assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
    child = judge._process._process
    assert child is not None
    child.kill()
    child.wait(10)
    assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT


def dying_at(process: MathProcess, answer: str, ended: list[int]) -> None:
    """The process is killed when it is asked about this answer."""
    ask = process._ask

    def asked(question: Question) -> Reply:
        if question.answer == answer:
            assert process.pid is not None
            ended.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        return ask(question)

    process._ask = asked  # type: ignore[method-assign]


def test_a_process_that_dies_at_every_answer_is_started_anew_so_often_and_then_names_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_process, "RESTARTS", 2)
    judge, ended = MathJudge(deadline_s=60.0), list[int]()
    dying_at(judge._process, "1/3", ended)
    try:
        for _ in range(2):
            assert judge(["0.5"], "\\boxed{1/3}") is Verdict.FAILED
            assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
        with pytest.raises(CompareBroken, match=r"exit code -9, last at the answer '1/3' where \['0\.5'\] is right; .* anew at most 2 times"):
            judge(["0.5"], "\\boxed{1/3}")
        assert len(set(ended)) == 3
    finally:
        judge.close()


def test_a_process_that_dies_between_two_answers_is_not_started_anew_for_ever_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_process, "RESTARTS", 1)
    judge = MathJudge(deadline_s=60.0)
    try:
        for number in range(3):
            if number == 2:
                with pytest.raises(CompareBroken, match=r"exit code -9, last at the answer '1/2'"):
                    judge(["0.5"], "\\boxed{1/2}")
                break
            assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
            child = judge._process._process
            assert child is not None
            child.kill()
            child.wait(10)
    finally:
        judge.close()


def test_what_comparing_raises_is_a_counted_zero_with_its_reason(
    judge: MathJudge, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(truths: list[str], answer: str) -> bool:
        raise CompareFailed("ZeroDivisionError: of its own")

    monkeypatch.setattr(judge._process, "equal", raising)
    monkeypatch.setattr(judge, "_warnings", 0)
    verdicts = [judge(["0.5"], "\\boxed{1/3}") for _ in range(math_judge.MOST_WARNINGS + 5)]
    assert set(verdicts) == {Verdict.FAILED}
    assert caplog.text.count("ZeroDivisionError: of its own") == math_judge.MOST_WARNINGS


def test_memory_of_a_comparison_is_bounded() -> None:
    process = MathProcess(60.0, 1 << 30)
    try:
        assert process.equal(["1/2"], "0.5")
        limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        (line,) = (line for line in limits if line.startswith("Max address space"))
        assert line.split()[3] == str(1 << 30)
    finally:
        process.close()
    with pytest.raises(RuntimeError, match="did not start"):
        MathProcess(60.0, 32 << 20).equal(["1/2"], "0.5")  # not even sympy fits in


def test_it_works_where_scoring_happens_off_the_main_thread(judge: MathJudge) -> None:
    """math-verify's own time limits are signals, which only a main thread may set."""
    scorer = DeadlineScorer(lambda item, response: float(judge([item.decode()], "\\boxed{0.5}")), 120.0)
    assert scorer([b"1/2", b"1/3"], [[0], [0]]) == [float(Verdict.RIGHT), float(Verdict.WRONG)]
    scorer.close()


def test_nothing_is_left_when_the_judge_is_closed() -> None:
    judge = MathJudge(deadline_s=60.0)
    assert judge(["0.5"], "\\boxed{1/2}") is Verdict.RIGHT
    pid = judge._process.pid
    assert pid is not None
    judge.close()
    assert not alive(pid)
    judge.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_process_ends_when_nobody_asks_any_more() -> None:
    """Its asker was killed: the pipe ends."""
    process = MathProcess(60.0, 2 << 30)
    process._start()
    child = process._process
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()
    try:
        assert child.wait(30) == 0
    finally:
        process.close()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"forms": ["boxes"]}, "boxed, hashes, last_number"),
    ({"forms": []}, "there must be one"),
    ({"deadline_s": 0}, "above 0"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED)
def test_settings_that_would_score_nothing_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MathJudge(**wrong)


def test_the_kernel_ends_a_comparison_that_nobody_waits_for() -> None:
    """The asker is gone in the middle of one: the processor time of a question is bounded by the kernel."""
    process = MathProcess(1.0, 2 << 30)
    process._start()
    child = process._process
    assert child is not None
    assert child.stdin is not None
    try:
        child.stdin.write(b'{"truths":["1/2"],"answer":"%s"}\n' % TOWER.encode())
        child.stdin.flush()
        child.stdin.close()  # nobody will end it
        assert child.wait(100) == -signal.SIGXCPU
    finally:
        process.close()
