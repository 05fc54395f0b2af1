"""Rules on what follows a run: writers that exist, an address that can be one, and packages that are installed."""

from __future__ import annotations

import importlib.util

from asyncflow.config.errors import SettingError, as_value, closest, did_you_mean
from asyncflow.config.observe import PROMETHEUS_EXTRA, PROMETHEUS_PACKAGE, WRITER_PACKAGES
from asyncflow.config.root import RunConfig
from asyncflow.data.lookup import missing
from transfer_queue.operation.address import split_bind

WRITERS, BIND = "observe.writers", "observe.prometheus_bind"


def observe(config: RunConfig) -> None:
    """Names, numbers and addresses, without a look at this machine."""
    settings = config.observe
    for name in settings.writers:
        if ":" not in name and name not in WRITER_PACKAGES:
            meant = [closest(other, WRITER_PACKAGES) or "tensorboard" if other == name else other for other in settings.writers]
            raise SettingError(
                WRITERS,
                settings.writers,
                rule=f"there is no writer {name!r}, {did_you_mean(name, WRITER_PACKAGES)}",
                consequence="its numbers would go nowhere",
                fix=[f"{WRITERS}={as_value(list(dict.fromkeys(meant)))}"],
                advice='or "package.module:name" for one of your own',
            )
    if len(set(settings.writers)) < len(settings.writers):
        raise SettingError(
            WRITERS,
            settings.writers,
            rule="each is named once",
            consequence="one of them would write everything twice",
            fix=[f"{WRITERS}={as_value(list(dict.fromkeys(settings.writers)))}"],
        )
    if settings.writer_close_s <= 0:
        raise SettingError(
            "observe.writer_close_s",
            settings.writer_close_s,
            rule="it must be above 0",
            consequence="no writer could bring out what it still holds",
            fix=["observe.writer_close_s=20"],
        )
    _bind(settings.prometheus_bind)


def _bind(bind: str | None) -> None:
    if bind is None:
        return
    try:
        split_bind(bind)
    except ValueError as error:
        raise SettingError(
            BIND, bind, rule=str(error), consequence="Prometheus could not ask there, so nothing was started", fix=[f"{BIND}=127.0.0.1:0"]
        ) from None


def packages(config: RunConfig) -> None:
    """What was asked for is installed here. Raises SettingError with the command that installs it."""
    settings = config.observe
    for name in settings.writers:
        if name in WRITER_PACKAGES:
            left = [other for other in settings.writers if other != name]
            _installed(WRITERS, settings.writers, WRITER_PACKAGES[name], name, f"{WRITERS}={as_value(left)}")
        else:
            _there(settings.writers, name)
    if settings.prometheus_bind is not None:
        _installed(BIND, settings.prometheus_bind, PROMETHEUS_PACKAGE, PROMETHEUS_EXTRA, f"{BIND}=null")


def _there(writers: tuple[str, ...], name: str) -> None:
    """A writer of one's own is code that is there, as far as reading tells."""
    lost = missing(name)
    if lost is not None:
        mended = [lost.meant if other == name else other for other in writers if other != name or lost.meant is not None]
        raise SettingError(
            WRITERS,
            writers,
            rule=f"{name!r}: {lost.why}; it must be package.module:name of code that is there",
            consequence="its numbers would go nowhere",
            fix=[f"{WRITERS}={as_value(mended)}"],
            advice="or package.module:name, installed here or in a folder that PYTHONPATH names",
        )


def _installed(key: str, value: object, package: str, extra: str, without: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise SettingError(
            key,
            value,
            rule=f"it needs the package {package.replace('_', '-')!r}, which is not installed here",
            consequence="nothing could be written there, so nothing was started",
            advice=f"pip install 'asyncflow[{extra}]', or leave it out: {without}",
        )
