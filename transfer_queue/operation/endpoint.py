"""The HTTP server behind a Prometheus endpoint. Whoever connects may cost its process little: few threads, none for long, and no word on the
terminal."""

from __future__ import annotations

import io
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

log = logging.getLogger(__name__)

REQUEST_S = 5.0  # in which a client has sent its request and taken the answer
CLIENTS = 32  # at once; further ones are turned away

Application = Callable[..., Iterable[bytes]]  # of WSGI


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S  # of each read and write of the socket

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: standard error is the person's."""

    def get_stderr(self) -> io.StringIO:
        """Where wsgiref writes the traceback of a client that took its answer too slowly."""
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = CLIENTS

    def __init__(self, *args: Any) -> None:
        self._places = threading.BoundedSemaphore(CLIENTS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = threading.Timer(2 * REQUEST_S, _cut, [request])  # also one that sends a byte now and then
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that sent rubbish or went away: nobody needs to know."""

    def server_bind(self) -> None:
        """Without the base class's look-up of this host's name, which may take long."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _cut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is over already


def _telling(application: Application) -> Application:
    """Its own faults are ours, and somebody needs to know."""

    def tell(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return application(environ, start_response)
        except Exception:  # wsgiref answers with 500
            log.exception("the metrics could not be told")
            raise

    return tell


def serve_metrics(host: str, port: int, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    """Listens when it returns. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = _ServerV6 if family == socket.AF_INET6 else _Server
    server = make_server(str(address[0]), port, _telling(make_wsgi_app(registry)), kind, handler_class=_Handler)
    thread = threading.Thread(target=server.serve_forever, name="prometheus", daemon=True)
    thread.start()
    return server, thread
