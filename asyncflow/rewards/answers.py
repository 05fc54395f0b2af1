"""The answer in a response's text, and whether it is a plain whole number. Every search is in a bounded part of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

Form = Literal["boxed", "hashes", "last_number"]
FORMS: tuple[Form, ...] = get_args(Form)

MOST_CHARS = 512  # of an answer; what is longer is not compared
TAIL_CHARS = 4096  # of a response's end, in which the last number is looked for

BOX, HASHES = "\\boxed{", "####"
NUMBER = re.compile(r"(?:(?<![\w)\]}.])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|\.\d+")
WHOLE = re.compile(r"[+-]?\d+(?:\.0+)?")
GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # a comma between thousands
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  # letters that no backslash begins
UNIT = re.compile(r"([$€£¥₹]?-?[\d,]*\.?\d+)\s+([A-Za-z]{2,})[A-Za-z .]*")  # a number and words behind it
NO_UNIT = ("and", "or", "pi", "sin", "cos", "tan", "log", "ln", "sqrt", "percent")  # words behind a number that change it
EMPHASIS = "*_`"
MONEY = "$€£¥₹"


def find_answer(text: str, forms: Sequence[Form] = FORMS) -> str | None:
    """The answer by the first of `forms` that the text has; None where it has none.

    boxed: what the last \\boxed{…} holds. hashes: what stands behind the last "####" on its line; of a line with words, its first number.
    last_number: the last number near the text's end. A longer answer than `MOST_CHARS` comes back as it is: the caller can tell.
    """
    found = {"boxed": _boxed, "hashes": _hashes, "last_number": _last_number}
    return next((answer for form in forms if (answer := found[form](text)) is not None), None)


def cleaned(answer: str) -> str:
    """Without emphasis, currency, units in plain words, thousands commas, the final full stop, and dollar signs around it. A percent sign is a unit
    too: 50% is 50 and not 0.5."""
    text = answer.replace("\u2212", "-").replace("\\$", "").replace("\\!", "").replace("{,}", ",").strip()
    text = text.strip(EMPHASIS + " ").rstrip(".").strip(MONEY + EMPHASIS + " ")
    text = re.sub(rf"^-[{MONEY}]", "-", text)
    text = text.removesuffix("%").removesuffix("\\").rstrip() if text.endswith("%") else text
    unit = UNIT.fullmatch(text) if len(text) <= MOST_CHARS else None
    if unit is not None and unit[2].lower() not in NO_UNIT:
        text = unit[1].lstrip(MONEY)
    return GROUPED.sub("", text) if not _listed(text) else text


def whole(text: str) -> int | None:
    """The number that a cleaned text is if it is a plain whole one ("72", "-5", "72.00"); None for everything else."""
    if len(text) > MOST_CHARS or not text.isascii() or WHOLE.fullmatch(text) is None:
        return None
    return int(text.partition(".")[0])


def _listed(text: str) -> bool:
    """Brackets or spaces: commas may separate elements there."""
    return any(mark in text for mark in "()[]{} ;")


def _boxed(text: str) -> str | None:
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, begin = 1, start + len(BOX)
    for place in range(begin, min(len(text), begin + MOST_CHARS + 1)):
        if text[place] in "{}" and text[place - 1] != "\\":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return text[begin:place].strip() or None
    return text[begin:] if len(text) - begin > MOST_CHARS else None  # too long, or never closed


def _hashes(text: str) -> str | None:
    _, marked, behind = text.rpartition(HASHES)
    if not marked:
        return None
    line = behind.lstrip("#").lstrip(" \t").partition("\n")[0].strip()
    if len(line) <= MOST_CHARS and WORD.search(line) is not None and "\\" not in line:
        number = NUMBER.search(line)
        return None if number is None else number[0]
    return line or None


def _last_number(text: str) -> str | None:
    found = [match[0] for match in NUMBER.finditer(text[-TAIL_CHARS:])]
    return found[-1] if found else None
