"""Where an HTTP endpoint listens, as people write it."""

from __future__ import annotations

LOOPBACK = "127.0.0.1"


def split_bind(bind: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises ValueError that says which rule is broken."""
    host, colon, port = bind.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host:
        raise ValueError("it names host and port, the host being an address of this machine")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{port!r} is no port, which is a number from 0 to 65535")
    return host, int(port)


def metrics_bind(text: str) -> tuple[str, int]:
    """The same where the host may be left out: "9400" and ":9400" are on loopback. Raises ValueError with key, value, rule and fix."""
    port = text.removeprefix(":")
    try:
        return split_bind(f"{LOOPBACK}:{port}" if port.isascii() and port.isdigit() else text)
    except ValueError as error:
        raise ValueError(f"metrics={text!r}: {error}; nothing listens. Write PORT, or HOST:PORT with 0 for any free port") from None


def metrics_url(host: str, port: int) -> str:
    """What Prometheus is told."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
