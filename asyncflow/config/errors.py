"""What a user did wrong in the configuration, said so that it can be put right: key, value, rule, consequence, fix."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

MOST_SHOWN = 200  # characters of a value in a message
PLAIN = re.compile(r"[\w./:@%+-]+")  # a text that an override may hold without quotes …
OTHER = re.compile(r"null|true|false|on|off|yes|no|nan|inf|[-+\d._e]+", re.IGNORECASE)  # … unless it would be read as something else


class ConfigError(ValueError):
    """What a user asked for cannot be done. It is shown as it is, without a traceback."""


class Absent(Enum):
    """The value of a key that is not there: None is a value."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class Raw(str):
    """A value as the command line spells it: shown and repeated as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class SettingError(ConfigError):
    """A configuration that cannot be run. Every message has all five parts, for it cannot be made without them."""

    def __init__(self, key: str, value: object = ABSENT, *, rule: str, consequence: str, fix: Sequence[str] = (), advice: str = "") -> None:
        """`fix`: overrides KEY=VALUE that mend it, as the command line takes them in place of what is there; `advice`: what no override can do.
        At least one of them is given; the message shows both."""
        assert fix or advice, "an error without a fix leaves the user alone"
        self.key, self.value, self.rule, self.consequence, self.fix, self.advice = key, value, rule, consequence, tuple(fix), advice
        self.mend = ", ".join(filter(None, (shlex.join(fix), advice)))
        said = key if value is ABSENT else f"{key} = {spelt(value)}"
        super().__init__(f"{said}: {rule}; {consequence}. Fix: {self.mend}")


def spelt(value: Any) -> str:
    """A value as YAML and the command line spell it, shortened where it is long: null, true, 3, 'text', [a, b]."""
    text = _spelt(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _spelt(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_spelt(entry) for entry in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_spelt(entry)}' for key, entry in value.items())}}}"
    return str(value) if isinstance(value, float) and not math.isfinite(value) else repr(value)


def as_value(value: Any) -> str:
    """A value as it stands behind the = of an override, without spaces: [a,b], null, 0.5, text, 'quoted text'."""
    if isinstance(value, list | tuple):
        return f"[{','.join(as_value(entry) for entry in value)}]"
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and not OTHER.fullmatch(value) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return _spelt(value)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None where none is near."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """"did you mean 'X'?" for the closest of `known`, else the known words."""
    options = sorted(known)
    near = closest(word, options)
    return f"did you mean {near!r}?" if near is not None else f"known here: {', '.join(options) or 'nothing'}"
