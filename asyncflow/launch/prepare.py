"""Where the weights of version 0 come from: a directory as given, or one that the recipe's own code makes or finds in its cache."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from asyncflow.config import RunConfig

Prepare = Callable[["RunConfig", str], Path]


def prepare_models(config: bytes, out: Connection) -> int:
    """Process entry: call every `models.*.prepare`, send {model: directory} as JSON. In a process of its own, for it may train for a while."""
    from asyncflow.config import RunConfig

    out.send_bytes(msgspec.json.encode(prepared(RunConfig.decode(config))))
    return 0


def prepared(config: RunConfig) -> dict[str, str]:
    """Directory of every model that has a `prepare`."""
    found = {}
    for name, model in config.models.items():
        if model.prepare is not None:
            module, _, function = model.prepare.partition(":")
            make: Prepare = getattr(importlib.import_module(module), function)
            found[name] = str(make(config, name))
    return found


def with_paths(config: RunConfig, directories: dict[str, str]) -> RunConfig:
    """The configuration with a directory for every model. Raises FileNotFoundError for one that has no config.json."""
    own = {name: directories.get(name) or model.path for name, model in config.models.items()}
    models = {}
    for name, model in config.models.items():
        path = own[name] if model.same_as is None else own[model.same_as]
        if path is None or not (Path(path) / "config.json").is_file():
            raise FileNotFoundError(f"models.{name}: {path!r} holds no config.json: no directory of Hugging Face files; give models.{name}.path")
        models[name] = msgspec.structs.replace(model, path=str(Path(path).resolve()), prepare=None, same_as=None)
    return msgspec.structs.replace(config, models=models)
