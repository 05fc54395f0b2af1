"""The one entry of every worker, wherever it is started: `python -m asyncflow.worker --role R --controller URL [--key FILE]`.

It registers with the controller, gets the resolved configuration and the roster, runs its role's loop and leaves. A worker that raises tells the
controller its name and traceback, which ends the run.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
from pathlib import Path

from asyncflow.contracts.worker import EXPELLED, WorkerArgs

PEER_S = 3.0  # how long a worker whose peer is gone waits to hear that the run stops for a reason that others saw


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m asyncflow.worker", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--role", required=True)
    parser.add_argument("--controller", required=True, metavar="URL")
    parser.add_argument("--name", help="stable name; default ROLE-PID")
    parser.add_argument("--key", metavar="FILE", help="client.key made by `python -m transfer_queue keys`")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--attached", action="store_true", help="end when standard input is closed: whoever started this process holds it open")
    return parser


def worker_args(args: argparse.Namespace) -> WorkerArgs:
    return WorkerArgs(role=args.role, name=args.name or f"{args.role}-{os.getpid()}", controller=args.controller, key=args.key, threads=args.threads)


def main(args: WorkerArgs) -> int:
    """Run one worker to its end. Returns the exit code: 0 after a clean stop, 1 when it raised, EXPELLED when it may be started again."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the launcher turns it into a stop for everyone
    set_threads(args.threads)
    from transfer_queue.security import Security

    security = Security.load(Path(args.key)) if args.key else None
    if args.role == "shard":
        from transfer_queue.shard.server import serve

        serve(args.name, args.controller, security)
        return 0
    return run_worker(args, security)


def set_threads(threads: int) -> None:
    """Before torch is used: two threads on two busy cores were seen 7 times slower than one."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # forked from a preloaded server: the variable comes too late
        sys.modules["torch"].set_num_threads(threads)


def run_worker(args: WorkerArgs, security: object) -> int:
    from asyncflow.workers.context import WorkerContext
    from asyncflow.workers.control import ControllerLost, is_expelled
    from asyncflow.workers.roles import build_role
    from transfer_queue.errors import QueueError

    try:
        context = WorkerContext.connect(args, security)
    except QueueError as error:
        if not is_expelled(error):
            raise
        print(f"{args.name}: {error}", file=sys.stderr)
        return EXPELLED
    signal.signal(signal.SIGTERM, lambda *_: context.control.request_stop())
    try:
        build_role(context).run()
    except ControllerLost as error:
        print(f"{args.name}: {error}", file=sys.stderr)
        return EXPELLED
    except Exception as error:  # the boundary: whatever a stage raises must end the run with its name and traceback
        text = traceback.format_exc()
        print(f"{args.name} raised:\n{text}", file=sys.stderr)
        if is_expelled(error):
            return EXPELLED
        if isinstance(error, ConnectionError | TimeoutError) and context.run_stops(PEER_S):
            return 1  # a peer died: whoever saw it has named it, and this worker's own words would only hide the cause
        return 1 if context.fail(f"{type(error).__name__}: {error}", text) else EXPELLED
    context.leave()
    return 0


def command(argv: list[str]) -> int:
    """What `python -m asyncflow.worker` does. Returns the exit code."""
    args = make_parser().parse_args(argv)
    if args.attached:
        from transfer_queue.operation.parent import end_with_stdin

        end_with_stdin()
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return main(worker_args(args))


def end(code: int) -> None:
    """As a forked worker ends: an interpreter takes apart all it imported, which with large libraries takes longer than `limits.drain_s`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(command(sys.argv[1:]))
