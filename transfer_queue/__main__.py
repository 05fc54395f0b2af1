"""`python -m transfer_queue serve FILE`, `… status --controller URL`, and the other commands of `transfer_queue/operation/parser.py`."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from transfer_queue import keys, status
from transfer_queue.errors import Gone, QueueError, QueueTimeout
from transfer_queue.journal.errors import JournalError
from transfer_queue.journal.settings import JournalSettings
from transfer_queue.operation import parts, settings_file
from transfer_queue.operation.address import metrics_bind
from transfer_queue.operation.child import ChildFailed
from transfer_queue.operation.parent import end_with_stdin
from transfer_queue.operation.parser import make_parser
from transfer_queue.operation.probe import Probe
from transfer_queue.operation.report import QueueReport
from transfer_queue.operation.serve import ServeOptions, Service
from transfer_queue.operation.signals import Signals
from transfer_queue.operation.watching import watch
from transfer_queue.saving.loader import load
from transfer_queue.saving.saver import save
from transfer_queue.security import Security


def main(arguments: list[str] | None = None) -> int:
    """The command's exit code, or 1 with one line on stderr."""
    options = make_parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    try:
        return COMMANDS[options.command](options)
    except (QueueError, QueueTimeout, Gone, ChildFailed, JournalError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ServeOptions.__struct_fields__}
    given["metrics"] = None if options.metrics is None else _metrics_bind(options.metrics)
    return Service(ServeOptions(**given), say).run()


def _controller(options: argparse.Namespace) -> int:
    if options.attached:
        end_with_stdin()
    config = settings_file.load(options.file)
    journal = None if options.journal is None else JournalSettings(str(options.journal), replay_s=options.replay_s)
    return parts.run_controller(config, options.bind, _security(options.key), options.drain_s, say, journal)


def _shard(options: argparse.Namespace) -> int:
    if options.attached:
        end_with_stdin()
    sizes = options.capacity_bytes, options.keep_bytes
    return parts.run_shard(options.index, options.controller, _security(options.key), options.bind, *sizes, options.drain_s, say)


def _status(options: argparse.Namespace) -> int:
    show = _as_json if options.json else _as_text
    with Probe(options.controller, _security(options.key)) as probe:
        try:
            if options.watch is not None:
                return watch(probe, show, options.watch, options.timeout_s)
            say(show(probe.ask(options.timeout_s, waits=True)))
        except QueueTimeout as error:
            why = "it is not up, hangs, or the address or the key is that of another run"
            raise QueueTimeout(f"controller={options.controller!r} gave no answer within {options.timeout_s:g} s: {why}. {error}") from None
    return 0


def _metrics(options: argparse.Namespace) -> int:
    if options.attached:
        end_with_stdin()
    host, port = _metrics_bind(options.bind)
    from transfer_queue.operation.exporter import Exporter

    with Signals() as signals, Exporter(options.controller, _security(options.key), host, port) as exporter:
        say(f"metrics at {exporter.url}")
        wait([signals.fileno()])  # until a person or a supervisor ends it: scrapes are served by threads
    return 0


def _keys(options: argparse.Namespace) -> int:
    server, client = keys.write(options.dir)
    say(f"{server}  for the controller; keep it there\n{client}  for every other process of the run")
    return 0


def _save(options: argparse.Namespace) -> int:
    saved = save(options.controller, options.dir, _worker(options.key), options.timeout_s)
    say(f"{options.dir}: {saved.groups} open groups, {saved.prompts} waiting prompts, {saved.keys} keys, {saved.nbytes} bytes of columns")
    return 0


def _load(options: argparse.Namespace) -> int:
    epochs = load(options.controller, options.dir, _worker(options.key), options.timeout_s)
    say(f"{options.dir} is loaded" + "".join(f"; weights of {model!r}: go on under epoch {epoch} or later" for model, epoch in epochs.items()))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "serve": _serve,
    "controller": _controller,
    "shard": _shard,
    "status": _status,
    "metrics": _metrics,
    "save": _save,
    "load": _load,
    "keys": _keys,
}


def say(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # whoever listened has ended; what is left in the buffer would fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _security(path: Path | None) -> Security | None:
    return None if path is None else Security.load(path)


def _worker(path: Path | None) -> Security | None:
    return None if path is None else Security.load(path).worker()


def _metrics_bind(text: str) -> tuple[str, int]:
    if importlib.util.find_spec("prometheus_client") is None:
        raise ValueError("metrics need the package prometheus-client, which is not installed here; pip install 'asyncflow[prometheus]'")
    return metrics_bind(text)


def _as_json(report: QueueReport) -> str:
    return msgspec.json.encode(report).decode()


def _as_text(report: QueueReport) -> str:
    """Names and reasons are their members' own words: none of them may steer the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in status.render(report))


if __name__ == "__main__":
    sys.exit(main())
