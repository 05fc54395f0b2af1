"""verl's trainer mode `asyncflow`: `python -m verl.trainer.main_ppo trainer.v1.trainer_mode=asyncflow …` trains as the recipe does, on the cluster
that verl joins.

verl's task runner makes the trainer, opens a queue and builds agent loops around it. Here the trainer refuses what is not served before any of it
costs time, gives the queue back, lets no agent loop be built, and runs the recipe as a child: a run takes its process's signals and forks.

`python -m recipes.verl.registered` is that child: the configuration comes as JSON on its standard input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

WAITS_FOR = "verl.trainer.ppo.v1.trainer_base"
MODE = "asyncflow"
ELSEWHERE = ("ray_kwargs",)  # verl's main program starts the cluster


class RunFailed(RuntimeError):
    """The recipe's run did not complete."""


class NoAgentLoops:
    """In the place of verl's manager of agent loops: workers of the run take prompts from its own queue."""

    @classmethod
    def create(cls, **_: Any) -> NoAgentLoops:
        return cls()


def settings_of(config: Any) -> dict[str, Any]:
    """verl's DictConfig → plain data for `translate.run_config`, checked. Raises ConfigError."""
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    from asyncflow.config.check import check_runnable
    from recipes.verl.stock import refuse_changed
    from recipes.verl.translate import run_config

    own = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    plain = OmegaConf.to_container(migrate_legacy_reward_impl(own), resolve=True)
    assert isinstance(plain, dict)
    conf = {str(key): value for key, value in plain.items()}
    conf["asyncflow"] = {"launch": "ray", **(conf.get("asyncflow") or {})}
    refuse_changed(conf, besides=ELSEWHERE)
    check_runnable(run_config(conf), engines_of_its_own=True)
    return conf


def register(trainer_base: ModuleType) -> None:
    """Right after verl's module of that name was imported."""
    from omegaconf import open_dict

    stock: Any = trainer_base.PPOTrainer

    class AsyncFlowTrainer(stock):  # type: ignore[misc]  # the base is known when verl is imported
        """What verl's task runner calls, in its order; verl's own loop does not run."""

        def __init__(self, config: Any) -> None:
            """Raises ConfigError. Nothing of verl's own trainer is made."""
            self.config, self._conf = config, settings_of(config)
            with open_dict(config):
                config.actor_rollout_ref.rollout.agent.agent_loop_manager_class = f"{NoAgentLoops.__module__}.{NoAgentLoops.__name__}"

        def init(self) -> None:
            import transfer_queue

            transfer_queue.close()  # verl opened it; the run has one of its own

        def get_llm_client(self) -> None:
            return None

        def get_teacher_client(self) -> None:
            return None

        def get_reward_handles(self) -> list[Any]:
            return []

        def fit(self, agent_loop_manager: Any) -> None:
            """To the run's end. Raises RunFailed."""
            run_child(self._conf)

        def on_sample_end(self) -> None:
            """Of verl's loop."""

        def on_step_end(self) -> None:
            """Of verl's loop."""

    trainer_base.register_trainer(MODE)(AsyncFlowTrainer)


def run_child(conf: dict[str, Any]) -> None:
    """The recipe's run in a process of its own, which ends with this one. Raises RunFailed."""
    import ray

    rays_own = os.path.dirname(ray.__file__)  # its workers have parts of it on their search path
    search = [path or os.getcwd() for path in sys.path if not path.startswith(rays_own)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    if ray.is_initialized():
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    done = subprocess.run([sys.executable, "-m", "recipes.verl.registered"], env=environment, input=json.dumps(conf).encode(), check=False)
    if done.returncode != 0:
        raise RunFailed(f"AsyncFlow's run ended with exit code {done.returncode}; what it said is above, and in its run directory")


def main() -> int:
    from recipes.verl.main import train
    from transfer_queue.operation.parent import end_when_gone

    end_when_gone(os.pidfd_open(os.getppid()))
    return train(json.loads(sys.stdin.buffer.read()), None)


if __name__ == "__main__":
    sys.exit(main())
