"""A process that compares answers by math-verify: `python -m asyncflow.rewards.math_child BYTES SECONDS`.

It reads a `Question` a line and writes a `Reply` a line. What sympy does with an answer may take for ever, all memory, or the interpreter with it,
and no thread or signal in the same process can be relied on to end that: so it is done where `rewards.math_process` can. Where nobody is left to
do so the kernel does: a question may take SECONDS of the processor and a little.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Sequence
from typing import BinaryIO

import msgspec


class Question(msgspec.Struct, frozen=True):
    truths: list[str]  # any of them will do
    answer: str


class Reply(msgspec.Struct, frozen=True):
    """`error`: what comparing raised, in words; "" where it came to an end."""

    equal: bool = False
    error: str = ""


def equal(truths: Sequence[str], answer: str) -> bool:
    """Whether the answer means the same as one of the truths. Raises whatever math-verify, latex2sympy and sympy raise."""
    from math_verify import parse, verify

    found = parse(_boxed(answer), parsing_timeout=None, raise_on_error=True)  # its timeouts are signals: they work in main threads only
    return any(
        verify(parse(_boxed(truth), parsing_timeout=None, raise_on_error=True), found, timeout_seconds=None, raise_on_error=True) for truth in truths
    )


def _boxed(text: str) -> str:
    return f"\\boxed{{{text}}}"


def reply_to(line: bytes) -> Reply:
    question = msgspec.json.decode(line, type=Question)
    try:
        return Reply(equal(question.truths, question.answer))
    except Exception as error:  # of whatever kind: it belongs to the answer, and the next one is another
        return Reply(error=f"{type(error).__name__}: {error}"[:200])


def serve(questions: BinaryIO, replies: BinaryIO, seconds: int) -> None:
    """Until there are no more."""
    equal(["1/2"], "0.5")  # everything is imported and every table is made
    _say(replies, Reply(equal=True))
    for line in questions:
        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 2, hard))
        _say(replies, reply_to(line))


def _say(replies: BinaryIO, reply: Reply) -> None:
    replies.write(msgspec.json.encode(reply) + b"\n")
    replies.flush()


def main(most_bytes: int, seconds: int) -> None:
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that nobody watches the time; we do
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, replies, seconds)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
