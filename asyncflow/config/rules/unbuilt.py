"""What is well formed, expressible and not built yet: refused at the start, never ignored."""

from __future__ import annotations

from asyncflow.config.errors import SettingError
from asyncflow.config.models import COMPUTED
from asyncflow.config.root import POLICY, RunConfig


def ranks(config: RunConfig) -> None:
    workers = config.resources["trainer"].workers
    if workers > 1:
        rule, consequence = "training on several ranks is not there yet", "each would train weights of its own"
        raise SettingError("resources.trainer.workers", workers, rule=rule, consequence=consequence, fix=["resources.trainer.workers=1"])


def devices(config: RunConfig) -> None:
    roles = [role for role, settings in config.resources.items() if settings.devices != "cpu"]
    if roles:
        key, fix = f"resources.{roles[0]}.devices", [f"resources.{role}.devices=cpu" for role in roles]
        value, consequence = config.resources[roles[0]].devices, "the device would stay idle"
        raise SettingError(key, value, rule="workers compute on the CPU so far", consequence=consequence, fix=fix)


def cluster(config: RunConfig) -> None:
    if config.cluster.kind != "cpu":
        fix = ["cluster.kind=cpu", *(["cluster.devices=0"] if config.cluster.devices else [])]
        raise SettingError("cluster.kind", config.cluster.kind, rule="accelerators are not there yet", consequence="they would stay idle", fix=fix)


def publishers(config: RunConfig) -> None:
    workers = config.resources["publisher"].workers
    if workers != 1:
        rule, consequence = "there is one publisher a trained model", "receivers would not know whom to ask"
        raise SettingError("resources.publisher.workers", workers, rule=rule, consequence=consequence, fix=["resources.publisher.workers=1"])


def dtypes(config: RunConfig) -> None:
    names = [name for name, model in config.models.items() if model.dtype != COMPUTED]
    if names:
        rule, consequence = "computing in it is not there yet", f"the model would run in {COMPUTED} all the same"
        fix = [f"models.{name}.dtype={COMPUTED}" for name in names]
        raise SettingError(f"models.{names[0]}.dtype", config.models[names[0]].dtype, rule=rule, consequence=consequence, fix=fix)


def trained_models(config: RunConfig) -> None:
    for name, stage in config.stages.items():
        if stage.model is not None and stage.model != POLICY and not config.models[stage.model].frozen:
            rule = f"stages.{name} follows it, it is not frozen, and training several models in one run is not there yet"
            fix = [f"models.{stage.model}.frozen=true"]
            raise SettingError(f"models.{stage.model}.frozen", False, rule=rule, consequence="no new weights of it would ever come", fix=fix)
    if config.models[POLICY].frozen or config.stages["train"].model != POLICY:
        key = f"models.{POLICY}.frozen" if config.models[POLICY].frozen else "stages.train.model"
        value = True if config.models[POLICY].frozen else config.stages["train"].model
        fix = [f"{key}=false" if value is True else f"{key}={POLICY}"]
        raise SettingError(key, value, rule=f"{POLICY!r} is the model that is trained", consequence="nothing would be trained", fix=fix)
