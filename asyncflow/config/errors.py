"""`ConfigError`: what a user did wrong in the configuration, said so that it can be put right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A configuration that cannot be run. The message says key, value, rule, consequence and fix; it is shown without a traceback."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?' for the closest of `known`, else the known words."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(options) or 'nothing'}"
