"""The command line: one subcommand a thing to do with a recipe or a run. A user's mistake gets one message and no traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130
OVERRIDABLE = ("train", "explain")  # commands that take KEY=VALUE


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asyncflow", description="Reinforcement-learning post-training of language models as a stream.")
    parser.add_argument("--version", action="version", version=f"asyncflow {version('asyncflow')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a model by a recipe", description="Train a model by a recipe, on this machine.")
    train.add_argument("recipe", help="folder with a config.yaml, or a YAML file")
    train.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. staleness=4; all keys: docs/configuration.md")
    train.add_argument("--run-dir", metavar="DIR", help="where this run writes; default: run.root/run.name-TIME")
    train.add_argument("--dry-run", action="store_true", help="say what the run would be, as `explain` does, and start nothing")
    explain = commands.add_parser("explain", help="say what a recipe means", description="Every number that a run would derive. Starts nothing.")
    explain.add_argument("recipe", help="folder with a config.yaml, or a YAML file")
    explain.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for train")
    explain.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    report = commands.add_parser("report", help="make a page of a run, or of two side by side", description="One self-contained HTML page of a run.")
    report.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run: finished, in progress or crashed; a second is compared with it")
    report.add_argument("--out", metavar="FILE", help="where the page goes; default: RUN/report.html")
    report.add_argument("--trace", metavar="FILE", help="also write a trace that Perfetto opens (JSON)")
    size = commands.add_parser("size", help="which split of the devices is best", description="Bottleneck, prediction, best split.")
    size.add_argument("subject", metavar="RUN|COSTS", help="directory of a run, a cost table (.yaml), or the name of a stored table")
    size.add_argument("--devices", type=int, metavar="N", help="devices to split; default: as many as the present split has")
    size.add_argument("--staleness", metavar="K|null", help="default: that of the run; of a table 2")
    size.add_argument("--policy", choices=("wait", "drop"), help="default: that of the run; of a table wait")
    size.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    watch = commands.add_parser("watch", help="the live view of a run, from another terminal", description="The live view of a run. It only reads.")
    watch.add_argument("run", metavar="RUN", help="directory of a run that goes on or is over")
    watch.add_argument("--once", action="store_true", help="show its state now and end")
    watch.add_argument("--key", metavar="FILE", help="client.key, where the run has keys and they lie elsewhere on this machine")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns 0 only for a completed run or command, 1 for a run or an output that failed, 2 for a user's mistake,
    130 after Ctrl-C."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)  # argparse takes the overrides of one run only; those behind an option are left in `rest`
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word or args.command not in OVERRIDABLE]:
        parser.error(f"{' '.join(unknown)}: no option and no KEY=VALUE (asyncflow {args.command} --help)")
    try:
        return _lasting(args, rest)
    except KeyboardInterrupt:
        print("asyncflow: interrupted", file=sys.stderr)
        return INTERRUPTED


def _lasting(args: argparse.Namespace, rest: list[str]) -> int:
    """The command, with an output that cannot end it. A run does not fail for what could not be said of it."""
    from asyncflow.cli.output import lasting_output
    from asyncflow.config.errors import ConfigError

    with lasting_output() as output:
        try:
            code = _run(args, rest)
        except ConfigError as error:
            print(f"asyncflow: {error}", file=sys.stderr)
            return USER_ERROR
        except OSError as error:  # a full disk, a file that may not be read, a directory that was removed meanwhile
            print(f"asyncflow: {error}; {args.command} ended there. Fix: see to that file or disk, then call it again", file=sys.stderr)
            return FAILED
        output.flush()
    if output.lost is not None:
        print(f"asyncflow: standard output cannot be written ({output.lost}), a part of it is missing. Fix: name another place", file=sys.stderr)
        return code or (FAILED if args.command != "train" else 0)
    return code


def _run(args: argparse.Namespace, rest: list[str]) -> int:
    """The command's own code, imported only for it: `explain` answers before the parts of a run are loaded."""
    if args.command == "report":
        from asyncflow.cli.report import report

        return report(args.runs, args.out, args.trace)
    if args.command == "watch":
        from asyncflow.cli.watch import watch

        return watch(args.run, args.once, args.key)
    if args.command == "size":
        from asyncflow.cli.size import size

        return size(args.subject, args.devices, args.staleness, args.policy, args.json)
    overrides = [*args.overrides, *rest]
    if args.command == "explain":
        from asyncflow.cli.explain import explain

        return explain(args.recipe, overrides, args.json)
    if args.dry_run:
        from asyncflow.cli.explain import dry_run

        return dry_run(args.recipe, overrides, args.run_dir)
    from asyncflow.cli.train import train

    return train(args.recipe, overrides, args.run_dir)


if __name__ == "__main__":
    sys.exit(main())
