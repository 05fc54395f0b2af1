"""`python -m transfer_queue keys DIR` and `… status --controller URL [--key FILE]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transfer_queue import keys, status, waits
from transfer_queue.client import QueueClient
from transfer_queue.errors import QueueError, QueueTimeout
from transfer_queue.security import Security


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 1 with one line on stderr."""
    options = _parser().parse_args(arguments)
    try:
        print(_keys(options.dir) if options.command == "keys" else _status(options.controller, options.key, options.timeout_s))
    except (QueueError, QueueTimeout, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m transfer_queue", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("keys", help="make the CURVE keys of a run: needed as soon as a member is on another host")
    make.add_argument("dir", type=Path, metavar="DIR", help="gets server.key (for the controller) and client.key (for every other process)")
    show = commands.add_parser("status", help="print what a running queue holds, who waits for what since when, and whose move it is")
    show.add_argument("--controller", required=True, metavar="URL", help="the controller's address, e.g. tcp://127.0.0.1:4711")
    show.add_argument("--key", type=Path, metavar="FILE", help="client.key, where the run has keys")
    show.add_argument("--timeout-s", type=float, default=5.0, help="deadline of the answer in seconds (default 5)")
    return parser


def _keys(directory: Path) -> str:
    server, client = keys.write(directory)
    return f"{server}  for the controller; keep it there\n{client}  for every other process of the run"


def _status(url: str, key: Path | None, timeout_s: float) -> str:
    with QueueClient.outsider(url, security=Security.load(key).worker() if key else None) as client:
        reply = client.status(waits=True).result(timeout_s)
    return status.render(reply.status) + ("" if reply.waits is None else f"\n\n{waits.render(reply.waits)}")


if __name__ == "__main__":
    sys.exit(main())
