"""One connection that sends nonsense and looks at every answer: none may be a fault of the server, or what somebody else should have got."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from tests.soak.records import Recorder, Wrong
from transfer_queue import messages as m
from transfer_queue.shard import messages as sm
from transfer_queue.wire import encode, id_of

FIRST = 1000  # ids of `malformed` are smaller


class Answers:
    """Of all bursts together."""

    def __init__(self, note: Recorder) -> None:
        self._note = note
        self.numbers: Iterator[int] = itertools.count(FIRST)
        self.sent: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.slowest_s = 0.0

    def wrong(self, what: str) -> None:
        self._note(Wrong(what=what))

    def count(self, reply: Any) -> None:
        kind = type(reply).__name__
        failed = isinstance(reply, m.ErrorReply | sm.ShardError)
        self.kinds[f"{kind}:{reply.code}" if failed else kind] += 1
        if failed and reply.code == "internal":
            self.wrong(f"nonsense made a server fail: {reply.message}")


class Burst:
    def __init__(self, endpoint: str, decode: Callable[[bytes], Any], answers: Answers) -> None:
        self._decode, self._answers = decode, answers
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 500
        self._socket.connect(endpoint)
        self._ids: set[int] = set()  # of what was sent
        self._expected: dict[int, bytes] = {}  # id of a read → the bytes that may come

    def number(self) -> int:
        return next(self._answers.numbers)

    def send(self, frames: Sequence[bytes], expected: bytes = b"") -> None:
        """`expected`: the bytes that may come back."""
        number = id_of(frames[0]) if frames else -1
        self._ids.add(number)
        self._expected[number] = expected
        self._socket.send_multipart(frames)

    def ask(self, request: Any, within_s: float, frames: Sequence[bytes] = ()) -> Any:
        """Its reply, when all that came before it was looked at; None past the deadline."""
        request, begin = msgspec.structs.replace(request, id=self.number()), time.monotonic()
        self.send([encode(request), *frames])
        while (left := begin + within_s - time.monotonic()) > 0:
            if not self._socket.poll(int(left * 1000) + 1):
                continue
            reply = self._look(self._socket.recv_multipart())
            if reply.id == request.id:
                self._answers.slowest_s = max(self._answers.slowest_s, time.monotonic() - begin)
                return reply
        return None

    def _look(self, frames: list[bytes]) -> Any:
        reply = self._decode(frames[0])
        self._answers.count(reply)
        refused = isinstance(reply, m.ErrorReply | sm.ShardError)
        if not refused and reply.id not in self._ids:
            self._answers.wrong(f"a {type(reply).__name__} with id {reply.id} came, which nobody here asked for")
        if (came := b"".join(frames[1:])) and came != self._expected.get(reply.id):
            self._answers.wrong(f"{len(came)} bytes came that are not those of the block that was read")
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
