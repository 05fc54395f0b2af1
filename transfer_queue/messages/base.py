"""What every record on a socket has in common, and the words that several of them use."""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 10
Unit = Literal["row", "group"]
State = Literal["admitted", "generating", "complete", "leased", "trained", "dropped"]
Policy = Literal["wait", "drop"]
RunState = Literal["run", "drain", "pause", "stop"]
Kind = Literal["scalar", "per_token", "blob", "text", "object"]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of plain records inside messages."""


class Request(msgspec.Struct, tag=True, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base: `id` is unique within the client's connection; within its incarnation, of a member that repeats requests (see `controller.repeats`)."""

    id: int = 0
    back: int = 0  # the oldest request of this connection whose reply has not come is `id - back`; of use where requests are repeated


class Cancel(Request, frozen=True):
    """Answer the parked request `target` of this connection now: with what it has, else empty. Its reply is its own; this one is OkEmpty."""

    target: int


class Reply(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    id: int = 0  # the request it answers


class OkEmpty(Reply, frozen=True):
    """Done; or, for a parked request, nothing came within `wait_s`."""


class ErrorReply(Reply, frozen=True):
    code: str  # "malformed" | "unknown_topic" | "unknown_member" | "stale_incarnation" | "bad_request" | "internal" | ...
    message: str  # key, value, rule, consequence, fix
