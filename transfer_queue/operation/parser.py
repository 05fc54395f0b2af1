"""The command line of `python -m transfer_queue`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from transfer_queue.journal.settings import REPLAY_S
from transfer_queue.operation.watching import LEAST_S, MOST_S
from transfer_queue.shard.store import KEEP_BYTES

LOOPBACK = "tcp://127.0.0.1:0"
CAPACITY_BYTES = 1 << 32
DRAIN_S = 10.0
UNDER_WAY = "how long what is under way may take, and then members to leave"
WATCH_S = 2.0
MOST_SHARDS = 256
MOST_BYTES = 1 << 44
HOUR_S = 3600.0

Commands = argparse._SubParsersAction  # argparse has no public name for it


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m transfer_queue", description="Run a queue, look at one, make its keys.")
    commands = parser.add_subparsers(dest="command", required=True)
    _serve(commands)
    _controller(commands)
    _shard(commands)
    _status(commands)
    _metrics(commands)
    _save_and_load(commands)
    _keys(commands)
    return parser


def _serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="run a whole queue: controller and shards as processes, until Ctrl-C, SIGTERM or the run's end")
    _file(serve)
    serve.add_argument("--shards", type=_within(int, 1, MOST_SHARDS), default=1, metavar="N", help="processes that hold bytes (default 1)")
    _bind(serve, "the controller")
    serve.add_argument("--shard-bind", default=LOOPBACK, metavar="URL", help=f"where each shard listens (default {LOOPBACK})")
    _bytes(serve)
    _key(serve, "server.key: needed as soon as something listens beyond loopback")
    serve.add_argument("--metrics", metavar="[HOST:]PORT", help="serve metrics for Prometheus there; without HOST on loopback; 0: any free port")
    _drain(serve, UNDER_WAY)


def _controller(commands: Commands) -> None:
    controller = commands.add_parser("controller", help="run the controller alone; `serve` does so with shards beside it")
    _file(controller)
    _bind(controller, "it")
    _key(controller, "server.key: needed as soon as it listens beyond loopback")
    _drain(controller, UNDER_WAY)
    back = "keep what it needs to come back in this folder: whoever starts the same command again after a kill has the same controller again"
    controller.add_argument("--journal", type=Path, metavar="DIR", help=back)
    again = f"how long that takes, at most about: with fewer seconds it writes snapshots of its state more often (default {REPLAY_S:g})"
    controller.add_argument("--replay-s", type=_within(float, 0.001, HOUR_S), default=REPLAY_S, metavar="S", help=again)
    _attached(controller)


def _shard(commands: Commands) -> None:
    shard = commands.add_parser("shard", help="run one more shard of a queue, for example on another host; start it before the workers")
    _url(shard)
    index = "its number, unlike that of every other shard of the queue"
    shard.add_argument("--index", required=True, type=_within(int, 0, MOST_SHARDS - 1), metavar="N", help=index)
    _bind(shard, "it")
    _bytes(shard)
    _key(shard, "client.key, where the queue has keys")
    _drain(shard, "how long it keeps what it has for readers, taking nothing new in")
    _attached(shard)


def _status(commands: Commands) -> None:
    status = commands.add_parser("status", help="print what a running queue holds, who waits for what since when, and whose move it is")
    _url(status)
    _key(status, "client.key, where the queue has keys")
    deadline = "deadline of the answer in seconds (default 5)"
    status.add_argument("--timeout-s", type=_within(float, 0.001, HOUR_S), default=5.0, metavar="S", help=deadline)
    status.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    every = f"again every so many seconds (default {WATCH_S:g}), until Ctrl-C or the run's end"
    status.add_argument("--watch", type=_within(float, LEAST_S, MOST_S), nargs="?", const=WATCH_S, metavar="S", help=every)


def _metrics(commands: Commands) -> None:
    metrics = commands.add_parser("metrics", help="serve metrics of a running queue for Prometheus, until Ctrl-C or SIGTERM")
    _url(metrics)
    _key(metrics, "client.key, where the queue has keys")
    metrics.add_argument("bind", nargs="?", default="0", metavar="[HOST:]PORT", help="where; without HOST on loopback; 0: any free port (default)")
    _attached(metrics)


def _save_and_load(commands: Commands) -> None:
    save = commands.add_parser("save", help="write the whole queue into a new folder, as it is at one moment, while it works")
    load = commands.add_parser("load", help="load a saved queue into one that is empty, with any number of shards")
    for command in (save, load):
        command.add_argument("dir", type=Path, metavar="DIR", help="the saved queue")
        _url(command)
        _key(command, "client.key, where the queue has keys")
        deadline = "deadline of one answer in seconds (default 5)"
        command.add_argument("--timeout-s", type=_within(float, 0.001, HOUR_S), default=5.0, metavar="S", help=deadline)


def _keys(commands: Commands) -> None:
    keys = commands.add_parser("keys", help="make the CURVE keys of a run: needed as soon as a member is on another host")
    keys.add_argument("dir", type=Path, metavar="DIR", help="gets server.key (for the controller) and client.key (for every other process)")


# ------------------------------------------------------------ what several have


def _file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the queue's topics and limits, .toml or .json: the fields of CoreConfig")


def _url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--controller", required=True, metavar="URL", help="the controller's address, e.g. tcp://127.0.0.1:4711")


def _bind(parser: argparse.ArgumentParser, who: str) -> None:
    parser.add_argument("--bind", default=LOOPBACK, metavar="URL", help=f"where {who} listens (default {LOOPBACK}, any free port)")


def _bytes(parser: argparse.ArgumentParser) -> None:
    capacity, keep = f"most a shard stores (default {CAPACITY_BYTES})", f"free memory a shard keeps warm (default {KEEP_BYTES})"
    parser.add_argument("--capacity-bytes", type=_within(int, 1, MOST_BYTES), default=CAPACITY_BYTES, metavar="N", help=capacity)
    parser.add_argument("--keep-bytes", type=_within(int, 0, MOST_BYTES), default=KEEP_BYTES, metavar="N", help=keep)


def _key(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--key", type=Path, metavar="FILE", help=text)


def _drain(parser: argparse.ArgumentParser, text: str) -> None:
    text = f"after Ctrl-C or SIGTERM, {text} (default {DRAIN_S:g})"
    parser.add_argument("--drain-s", type=_within(float, 0, HOUR_S), default=DRAIN_S, metavar="S", help=text)


def _attached(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attached", action="store_true", help="end when standard input ends: the process that started this one is gone")


def _within(kind: type[int] | type[float], least: float, most: float) -> Callable[[str], float]:
    """What argparse reads a number with. It refuses NaN, too: no comparison with it holds, no wait for it ends."""

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} must be in [{least:g}, {most:g}]; nothing was done")
        return value

    read.__name__ = kind.__name__  # argparse calls what is no number by it
    return read
