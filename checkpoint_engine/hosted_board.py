"""Rank 0's board of notes behind a socket of its own: where a group meets that has no publisher.

Not a TCPStore: torch asks the DNS for a name on every connection to one, and one join in thirty took 5 s for it (measured), longer than a group may
take to form. Like the group, neither encrypted nor authenticated: for trusted networks only.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

import msgspec
import zmq

from checkpoint_engine import messages as m
from checkpoint_engine.collective import GroupError, check_timeout
from checkpoint_engine.rendezvous import MOST_NOTES, Board
from checkpoint_engine.wakeup import Wakeup
from checkpoint_engine.wire import close_watched, decode_from_publisher, decode_to_publisher, encode, new_socket, watched

if TYPE_CHECKING:
    from checkpoint_engine.board_store import BoardStore

_TICK_MS = 1000
_OVER_MS = 100  # how soon a wait notices that its own side gave up
_HOSTED = "hosted"  # the first note: somebody answers here


class HostedBoard:
    """Listens on a free `port` of `host` and on nothing else, until it is closed or dropped."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._timeout_s = check_timeout(timeout_s)
        router = new_socket(zmq.ROUTER)
        router.ipv6 = ":" in host
        router.bind(_address(host, 0))
        self.port = int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        wakeup, over = Wakeup(), threading.Event()
        self._board = Board(wakeup.set)
        self._board.post(_HOSTED, b"")
        threading.Thread(target=_serve, args=(router, self._board, wakeup, over), name="board", daemon=True).start()
        self._closing = weakref.finalize(self, _end, over, wakeup)

    def store(self) -> BoardStore:
        from checkpoint_engine.board_store import BoardStore

        return BoardStore(self._board.post, self._board.await_note, self._timeout_s)

    def post(self, key: str, value: bytes, instead_of: str = "") -> None:
        """A note for the members, in place of an older one that all have read."""
        self._board.drop(instead_of)
        self._board.post(key, value)

    def close(self) -> None:
        self._closing()


class JoinedBoard:
    """A member's connection to it."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        """Raises GroupError when nobody answers in time."""
        self._timeout_s = check_timeout(timeout_s)
        self._socket = new_socket(zmq.DEALER)
        self._socket.ipv6 = ":" in host
        self._monitor = watched(self._socket)
        self._socket.connect(_address(host, port))
        self._closing = weakref.finalize(self, close_watched, self._socket, self._monitor)
        self._closing.atexit = False
        self._lock = threading.Lock()  # a backend may look from threads of its own
        self._over = threading.Event()
        self._asked = 0
        try:
            self._fetch(_HOSTED, timeout_s)
        except GroupError as error:
            raise GroupError(f"the group's board at {host}:{port} did not answer within {timeout_s} s: is rank 0 alive?") from error

    def store(self) -> BoardStore:
        """Keeps the connection for as long as a group keeps the store."""
        from checkpoint_engine.board_store import BoardStore

        return BoardStore(self._post, self._fetch, self._timeout_s)

    def fetch(self, key: str, timeout_s: float) -> bytes:
        """Park for a note of rank 0's. Raises GroupError."""
        return self._fetch(key, timeout_s)

    def close(self) -> None:
        """Also while another thread waits for a note: that one is told."""
        self._over.set()
        with self._lock:
            self._closing()

    def _post(self, key: str, value: bytes) -> None:
        with self._lock:
            self._socket.send(encode(m.Post(epoch=0, key=key, value=value)))

    def _fetch(self, key: str, timeout_s: float) -> bytes:
        end = time.monotonic() + timeout_s
        with self._lock:
            self._asked += 1
            if not self._over.is_set():
                self._socket.send(encode(m.Look(seq=self._asked, epoch=0, key=key)))
            while (left := end - time.monotonic()) > 0:
                if self._over.is_set():
                    raise GroupError(f"the group was given up here while {key!r} was awaited")
                ready = zmq.zmq_poll([(self._socket, zmq.POLLIN), (self._monitor, zmq.POLLIN)], min(int(left * 1e3) + 1, _OVER_MS))
                if (self._socket, zmq.POLLIN) in ready:
                    answer = decode_from_publisher(self._socket.recv())
                    if isinstance(answer, m.Found) and answer.seq == self._asked:
                        return answer.value
                elif ready:
                    raise GroupError(f"the board of rank 0 closed while {key!r} was awaited: rank 0 ended, was killed, or gave the group up")
        raise GroupError(f"{key!r} did not come within {timeout_s} s: a member is missing")


def _serve(router: zmq.Socket[bytes], board: Board, wakeup: Wakeup, over: threading.Event) -> None:
    """Until `over`; a look is answered once its note is there. Holds nothing of the owner, so that dropping that one ends it."""
    looks: list[tuple[bytes, m.Look]] = []
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(wakeup.fileno(), zmq.POLLIN)
    while not over.is_set():
        if wakeup.fileno() in dict(poller.poll(_TICK_MS)):
            wakeup.clear()
        _take_in(router, board, looks)
        for entry in list(looks):
            value = board.look(entry[1].key)
            if value is not None:
                router.send_multipart([entry[0], encode(m.Found(seq=entry[1].seq, value=value))])
                looks.remove(entry)
    router.close()
    wakeup.close()


def _take_in(router: zmq.Socket[bytes], board: Board, looks: list[tuple[bytes, m.Look]]) -> None:
    """What is no note and no look, or too much of either, is dropped: its sender's deadline tells."""
    while router.poll(0):
        identity, *frames = router.recv_multipart()
        try:
            record = decode_to_publisher(frames[0] if frames else b"")
            if isinstance(record, m.Post):
                board.post(record.key, record.value)
            elif isinstance(record, m.Look) and len(looks) < MOST_NOTES:
                looks.append((identity, record))
        except (msgspec.DecodeError, GroupError):
            continue


def _end(over: threading.Event, wakeup: Wakeup) -> None:
    over.set()
    wakeup.set()


def _address(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"
