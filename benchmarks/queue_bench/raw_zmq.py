"""The limit of a socket: ZMQ DEALER to ROUTER over TCP with nothing above it, CURVE off or on. The server keeps what was put and sends it back."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import zmq

from benchmarks.queue_bench.answering import answer

WAIT_MS = 60_000


class RawServer:
    def start(self, secured: bool) -> dict[str, Any]:
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        key = None
        if secured:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
            key = public.decode()
        socket.bind("tcp://127.0.0.1:0")
        threading.Thread(target=_serve, args=(socket,), daemon=True).start()
        return {"endpoint": socket.getsockopt_string(zmq.LAST_ENDPOINT), "key": key}


def _serve(socket: zmq.Socket[bytes]) -> None:
    kept: dict[bytes, list[zmq.Frame]] = {}
    while True:
        sender, what, *frames = socket.recv_multipart(copy=False)
        if what.bytes == b"get":
            socket.send_multipart([sender, b"", *kept.get(sender.bytes, [])], copy=False)
            continue
        if what.bytes == b"put":
            kept[sender.bytes] = frames
        socket.send_multipart([sender, b""], copy=False)


class RawClient:
    def __init__(self, endpoint: str, key: str | None) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, WAIT_MS)
        if key is not None:
            public, secret = zmq.curve_keypair()
            for option, value in ((zmq.CURVE_PUBLICKEY, public), (zmq.CURVE_SECRETKEY, secret), (zmq.CURVE_SERVERKEY, key.encode())):
                self._socket.setsockopt(option, value)
        self._socket.connect(endpoint)

    def put(self, columns: list[np.ndarray], frame_bytes: int | None = None) -> None:
        """From the columns' memory, a frame each, or frames of at most `frame_bytes`; returns when the server has all."""
        frames: list[Any] = []
        for column in columns:
            flat = column.reshape(-1).view(np.uint8)
            step = frame_bytes or len(flat)
            frames += [flat[begin : begin + step] for begin in range(0, len(flat), step)]
        self._socket.send_multipart([b"put", *frames], copy=False)
        self._socket.recv_multipart()

    def get(self) -> list[np.ndarray]:
        """The frames' own memory."""
        self._socket.send(b"get")
        return [np.frombuffer(frame.buffer, dtype=np.uint8) for frame in self._socket.recv_multipart(copy=False)[1:]]

    def round_trips(self, count: int) -> None:
        for _ in range(count):
            self._socket.send(b"ask")
            self._socket.recv_multipart()

    def close(self) -> None:
        self._socket.close()


if __name__ == "__main__":
    answer(RawServer())
    os._exit(0)  # the serving thread has no end of its own
