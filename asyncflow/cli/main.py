"""The command line: `asyncflow train RECIPE [KEY=VALUE …]`. A user's mistake gets one message and no traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

USER_ERROR = 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asyncflow", description="Reinforcement-learning post-training of language models as a stream.")
    parser.add_argument("--version", action="version", version=f"asyncflow {version('asyncflow')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a model by a recipe", description="Train a model by a recipe, on this machine.")
    train.add_argument("recipe", help="folder with a config.yaml, or a YAML file")
    train.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. staleness=4; all keys: docs/configuration.md")
    train.add_argument("--run-dir", metavar="DIR", help="where this run writes; default: run.root/run.name-TIME")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script. Returns 0 only for a completed run, 1 for one that failed, 2 for a user's mistake."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)  # argparse takes the overrides of one run only; those behind an option are left in `rest`
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word]:
        parser.error(f"{' '.join(unknown)}: no option and no KEY=VALUE (asyncflow train --help)")
    from asyncflow.cli.train import train
    from asyncflow.config.errors import ConfigError

    try:
        return train(args.recipe, [*args.overrides, *rest], args.run_dir)
    except ConfigError as error:
        print(f"asyncflow: {error}", file=sys.stderr)
        return USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
