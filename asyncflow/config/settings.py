"""The base of every settings record, so that all of them behave alike: frozen, typed, strict about keys.

A settings record is a `Settings` subclass; each field carries one sentence as a trailing comment, from which docs/configuration.md is generated.
"""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: unknown keys are refused, values are never changed after loading (make a new record with `msgspec.structs.replace`)."""
