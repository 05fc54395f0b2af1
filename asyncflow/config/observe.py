"""Settings of what a run shows of itself while it goes on, beside the files of its directory."""

from __future__ import annotations

from typing import Literal

from asyncflow.config.settings import Settings

WRITER_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}  # writer of our own → package it needs, which is also our extra's name
PROMETHEUS_PACKAGE, PROMETHEUS_EXTRA = "prometheus_client", "prometheus"


class ObserveSettings(Settings, frozen=True):
    """Who follows the run. Nothing here changes what is trained, and nothing that fails here ends a run."""

    view: Literal["auto", "lines"] = "auto"  # "auto": a live picture in a terminal and plain lines elsewhere; "lines": always plain lines.
    writers: tuple[str, ...] = ()  # Where each step's numbers go too: `tensorboard`, `wandb`, or one of your own as "package.module:name".
    wandb_project: str = "asyncflow"  # Project of the `wandb` writer; the rest of its settings are its own (WANDB_MODE, WANDB_ENTITY, …).
    writer_close_s: float = 20.0  # How long the end of a run waits, for all writers together, until they have written what they still hold.
    prometheus_bind: str | None = None  # "host:port" where Prometheus may ask; port 0: a free one, told in `prometheus.url`; null: no endpoint.
