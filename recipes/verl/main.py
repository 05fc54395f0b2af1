"""`python -m recipes.verl.main [KEY=VALUE …]`: trains as verl's configuration says, with AsyncFlow's queue, flow control and weights.

`--explain` says what the configuration means in both languages, and starts nothing; `--run-dir DIR` is where the run writes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncflow.config.errors import ConfigError
from asyncflow.worker import end

CONFIG = "asyncflow"  # config/asyncflow.yaml


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """verl's configuration with ours over it, as plain data. Raises ConfigError."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    from asyncflow.config.load import FAULTS
    from recipes.verl.stock import refuse_changed

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(Path(__file__).parent / "config")):
            conf = compose(config_name=CONFIG, overrides=list(overrides))
        plain = OmegaConf.to_container(_migrated(conf), resolve=True)
    except FAULTS as error:
        raise ConfigError(f"{error}; nothing was started. Fix: correct the override (KEY=VALUE; +KEY=VALUE for a new key)") from None
    assert isinstance(plain, dict)
    conf = {str(key): value for key, value in plain.items()}
    refuse_changed(conf)
    return conf


def _migrated(conf: Any) -> Any:
    """verl moves old names of the reward's settings to their new places; its V1 trainer leaves that to whoever starts it."""
    from recipes.verl.conf import as_conf

    as_conf({"trainer": {"device": conf.trainer.device}})  # verl is imported next
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    return migrate_legacy_reward_impl(conf)


def explain(conf: dict[str, Any]) -> None:
    """Both tables. Raises ConfigError."""
    import msgspec
    from rich.console import Console

    from asyncflow.config.check import refusals
    from asyncflow.config.explain.explanation import explain as explained
    from asyncflow.config.explain.text import PLAIN_WIDTH, show, table
    from recipes.verl.translate import run_config
    from recipes.verl.units import compare, read_knobs, to_units

    config = run_config(conf)
    knobs = read_knobs(conf)
    rows = [(row.verl, row.value, row.ours, row.means) for row in compare(knobs, to_units(knobs))]
    table(Console(width=PLAIN_WIDTH), "verl's knobs", ("verl", "is", "here", "for"), rows)
    show(msgspec.structs.replace(explained(config), refused=refusals(config, engines_of_its_own=True)))


def train(conf: dict[str, Any], run_dir: str | None) -> int:
    """Returns 0 when the run completed. Raises ConfigError."""
    from asyncflow.cli.train import train_config
    from asyncflow.config.check import check_runnable
    from recipes.verl.folders import check_folders
    from recipes.verl.translate import run_config

    check_folders()
    config = run_config(conf)
    check_runnable(config, engines_of_its_own=True)
    return train_config(config, run_dir)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipes.verl.main", description="verl's recipe, trained by AsyncFlow.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="over verl's configuration; asyncflow.KEY: AsyncFlow's settings")
    parser.add_argument("--explain", action="store_true", help="say what the configuration means, and start nothing")
    parser.add_argument("--run-dir", metavar="DIR", help="where this run writes; default: runs/NAME-TIME")
    given, rest = parser.parse_known_args(argv)
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word]:
        parser.error(f"{' '.join(unknown)}: no option and no KEY=VALUE")
    try:
        conf = composed([*given.overrides, *rest])
        if given.explain:
            explain(conf)
            return 0
        return train(conf, given.run_dir)
    except ConfigError as error:
        print(f"recipes.verl.main: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    end(main())
