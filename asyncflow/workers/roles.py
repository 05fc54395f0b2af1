"""From a role's name to its worker: the one place that knows which parts a role is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncflow.config import POLICY
from asyncflow.contracts.stage import Stage, StageContext
from asyncflow.data.named import load_named
from asyncflow.data.task import load_task, score_deadline_s
from asyncflow.workers.context import WorkerContext
from asyncflow.workers.result_writer import ResultWriter
from asyncflow.workers.source import SourceWorker
from asyncflow.workers.stage import StageLoop, StageWorker

if TYPE_CHECKING:
    from asyncflow.workers.evaluation import Evaluator
    from asyncflow.workers.follower import WeightsFollower


class Worker(Protocol):
    def run(self) -> None: ...


def build_role(context: WorkerContext) -> Worker:
    """Roles with a loop of their own by name, every other role from the stages it lists. Imports are per role: a scorer never loads torch."""
    builders: dict[str, Callable[[WorkerContext], Worker]] = {
        "source": build_source,
        "rollout": build_rollout,
        "trainer": build_trainer,
        "publisher": build_publisher,
    }
    return builders.get(context.args.role, build_stages)(context)


def model_dir(context: WorkerContext, model: str) -> Path:
    """Hugging Face files of the model's version 0. The launcher has put a path there for every model."""
    path = context.config.models[model].path
    if path is None:
        raise ValueError(f"models.{model}.path is null in the resolved configuration: it has no weights to start from; use `asyncflow train`")
    return Path(path)


def build_source(context: WorkerContext) -> Worker:
    return SourceWorker(context, load_task(context.config), context.config.total_groups)


def build_rollout(context: WorkerContext) -> Worker:
    from asyncflow.engines.rollout.factory import make_rollout_engine
    from asyncflow.workers.rollout import RolloutWorker

    engine = make_rollout_engine(context.config, model_dir(context, POLICY), context.args.name)
    return RolloutWorker(context, engine, build_evaluator(context))


def build_evaluator(context: WorkerContext) -> Evaluator | None:
    from asyncflow.rewards.deadline import DeadlineScorer
    from asyncflow.workers.evaluation import Evaluator

    settings = context.config.evaluation
    if settings.every is None:
        return None
    task = load_task(context.config)
    questions = task.held_out(settings.items)
    return Evaluator(context, questions, DeadlineScorer(task.score, score_deadline_s(context.config, task)))


def build_trainer(context: WorkerContext) -> Worker:
    from asyncflow.engines.train.factory import make_training
    from asyncflow.workers.trainer import TrainerWorker

    config = context.config
    return TrainerWorker(context, config.stage("train"), make_training(config, model_dir(context, POLICY)))


def build_publisher(context: WorkerContext) -> Worker:
    from asyncflow.workers.publisher import ControllerSide, PublisherWorker
    from checkpoint_engine.publisher import Publisher

    settings = context.config.weights
    side = ControllerSide(context)
    publisher = Publisher(
        model=POLICY,
        bind=settings.bind,
        secure=context.security,
        bucket_bytes=settings.bucket_bytes,
        transport=settings.transport,
        group_timeout_s=settings.group_timeout_s,
        backend=settings.backend,
        on_published=side.published,
        on_sync=side.synced,
        spare=settings.cache_slots,
    )
    context.control.announce({f"publisher:{POLICY}": publisher.endpoint})
    return PublisherWorker(context, POLICY, model_dir(context, POLICY), publisher)


def build_stages(context: WorkerContext) -> Worker:
    followers: dict[str, WeightsFollower] = {}
    writer = ResultWriter(context)
    loops = [build_stage(context, stage, followers, writer) for stage in context.config.stages_of(context.args.role)]
    return StageWorker(context, loops, list(followers.values()), writer)


def build_stage(context: WorkerContext, stage: Stage, followers: dict[str, WeightsFollower], writer: ResultWriter) -> StageLoop:
    directory = model_dir(context, stage.model) if stage.model is not None else None
    compute = load_named(stage.compute, f"stages.{stage.name}.compute")(StageContext(stage, context.config, context.config.run_dir, directory))
    follower = None
    if stage.model is not None and not context.config.models[stage.model].frozen:
        from asyncflow.workers.follower import WeightsFollower

        follower = followers.get(stage.model) or WeightsFollower(context, stage.model)
        followers[stage.model] = follower  # one a process and model: a member joins a publisher once
    return StageLoop(context, stage, compute, follower, writer)
