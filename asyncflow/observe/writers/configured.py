"""The writers that a configuration asks for."""

from __future__ import annotations

from asyncflow.config import RunConfig
from asyncflow.config.observe import WRITER_PACKAGES
from asyncflow.data.named import load_named
from asyncflow.observe.writers.background import BackgroundWriter, Say
from asyncflow.observe.writers.feed import WriterFeed
from asyncflow.observe.writers.interface import MetricsWriter, WriterContext, WriterFactory


def configured(config: RunConfig, say: Say) -> WriterFeed:
    """Not fed before it is entered. Raises ConfigError where the Prometheus endpoint cannot listen; whatever else a writer needs, its own
    thread finds out."""
    context = WriterContext(config=config, run_dir=config.run_dir, say=say)
    writers = []
    if config.observe.prometheus_bind is not None:
        writers.append(_in_background("prometheus", _prometheus(context, config.observe.prometheus_bind), context))
    writers += [_in_background(name, factory_of(name), context) for name in config.observe.writers]
    return WriterFeed(config.run_dir, writers, config.observe.writer_close_s)


def factory_of(name: str) -> WriterFactory:
    """Imports nothing yet: what the factory needs is loaded in the writer's thread."""
    path = f"asyncflow.observe.writers.{name}:make" if name in WRITER_PACKAGES else name

    def make(context: WriterContext) -> MetricsWriter:
        writer: MetricsWriter = load_named(path, "observe.writers")(context)
        return writer

    return make


def _prometheus(context: WriterContext, bind: str) -> WriterFactory:
    """Listens before it returns, so that a port in use is told before anything is started."""
    from asyncflow.observe.writers.prometheus import PrometheusWriter  # an optional package

    writer = PrometheusWriter(context.config, context.run_dir, bind)
    context.say(f"metrics for Prometheus at {writer.url}")
    return lambda _: writer


def _in_background(name: str, factory: WriterFactory, context: WriterContext) -> BackgroundWriter:
    log = context.run_dir / "logs" / f"writer-{name.replace(':', '.')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return BackgroundWriter(name, lambda: factory(context), context.say, log)
