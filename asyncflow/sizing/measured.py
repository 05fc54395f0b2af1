"""A cost table from a run's own files: what its workers measured of their calls, its configuration, and the lengths of its responses.

On a CPU run a "device" is a worker. What was not measured is refused and named, never guessed; what the model leaves out is said in `notes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from asyncflow.config import RunConfig
from asyncflow.config.errors import ConfigError
from asyncflow.observe.records import EVENTS, METRICS, TIMELINE, CostSums, StepRecord, TimelineRecord
from asyncflow.sizing.costs import CostTable, Decode, Lengths, Pause, Split, Training, Work
from asyncflow.sizing.fit import Line, fit
from asyncflow.sizing.lengths import ResponseLengths
from asyncflow.sizing.load import check
from asyncflow.sizing.simulate import Policy, first_measured
from transfer_queue.messages import Event

T = TypeVar("T")
CONFIG = "config.json"
STAGES = ("actor_forward", "ref_forward")
LEAST_RESPONSES = 100  # fewer say little about the tail


class Measured(msgspec.Struct, frozen=True):
    costs: CostTable
    lengths: ResponseLengths
    staleness: int | None
    policy: Policy
    steps: int  # of the run, after its warm-up: whole windows of staleness + 1 where it has any
    tokens_per_s: float | None  # measured over those steps; None for a run too short
    staleness_mean: float | None  # of its groups over those steps, by oldest token, as the simulation counts; None where no group was trained in them
    notes: list[str]


def measured(run_dir: Path) -> Measured:
    """Raises ConfigError for a directory that holds no run, and for a run that did not measure what a table needs."""
    config = _config(run_dir)
    steps = _lines(run_dir / METRICS, StepRecord)
    sums = next((step.costs for step in reversed(steps) if step.costs), {})
    table = _Table(run_dir, config, sums, _response_lengths(run_dir), steps)
    costs = table.costs()
    check(costs)
    lengths = ResponseLengths(table.lengths, costs.group_rows)
    measured_steps = steps[first_measured(len(steps), config.staleness) :]
    return Measured(
        costs,
        lengths,
        config.staleness,
        config.flow.policy,
        len(measured_steps),
        throughput(steps, config.staleness),
        _age(run_dir, steps[len(steps) - len(measured_steps) - 1].t_s) if measured_steps else None,
        list(dict.fromkeys(table.notes)),
    )


def throughput(steps: list[StepRecord], staleness: int | None) -> float | None:
    """Trained response tokens a second over the measured steps; None for fewer than two of them."""
    first = first_measured(len(steps), staleness) - 1
    later = list(zip(steps[first:], steps[first + 1 :], strict=False))
    if len(later) < 2 or any(step.tokens_per_s is None for _, step in later):
        return None
    tokens = sum((step.tokens_per_s or 0.0) * (step.t_s - before.t_s) for before, step in later)
    return tokens / (steps[-1].t_s - steps[first].t_s)


class _Table:
    """One run's sums on their way to a table; `notes` grows as something has to be said about them."""

    def __init__(self, run_dir: Path, config: RunConfig, sums: dict[str, CostSums], lengths: np.ndarray, steps: list[StepRecord]) -> None:
        self._run_dir, self._config, self._sums, self.lengths, self._steps = run_dir, config, sums, lengths, steps
        self.notes: list[str] = []

    def costs(self) -> CostTable:
        config, rows = self._config, self._config.rollout.samples_per_prompt
        split, prompt = self._split(), self._prompt()
        costs = CostTable(
            name=config.run.name,
            source=f"measured by {self._run_dir}",
            decode=self._decode(prompt),
            actor_forward=self._work("actor_forward"),
            ref_forward=self._work("ref_forward"),
            train=self._training(),
            pause=Pause(self._mean_or_none_taken("load"), ("rollout", "actor_forward")),
            lengths=self._law(prompt),
            batch_groups=config.batch_size,
            group_rows=rows,
            split=split,
            switch_s=0.0,
            forward_rows=max((self._rows_a_call(stage) for stage in STAGES), default=1),
        )
        self._say_what_is_left_out()
        return costs

    def _split(self) -> Split:
        """Workers by stage: here a worker stands for a device. A forward stage that no role serves has none, and the model leaves it out."""
        return Split(
            self._config.resources["rollout"].workers,
            self._workers("actor_forward"),
            self._workers("ref_forward"),
            self._config.resources["trainer"].workers,
        )

    def _workers(self, stage: str) -> int:
        for role, resources in self._config.resources.items():
            if stage in resources.stages:
                if sharing := [other for other in resources.stages if other != stage]:
                    self.notes.append(f"{stage} shares the workers of {role} with {', '.join(sharing)}; the model gives each stage its own")
                return resources.workers
        return 0

    def _rows_a_call(self, stage: str) -> int:
        settings = self._config.stages.get(stage)
        if settings is None:
            return 1
        return settings.limit * (self._config.rollout.samples_per_prompt if settings.unit == "group" else 1)

    def _line(self, key: str, *, flat: bool = False) -> Line:
        line = fit(self._sums.get(key, CostSums()), flat=flat)
        if line is None:
            raise ConfigError(
                f"{self._run_dir}: {key} was not measured: {METRICS} has no call of it ({', '.join(sorted(self._sums)) or 'no costs at all'}), and a "
                "guess would be worth nothing. Size a run that got as far as its second step and was recorded by this version"
            )
        if line.note is not None:
            self.notes.append(f"{key}: {line.note}")
        return line

    def _mean(self, key: str) -> float | None:
        sums = self._sums.get(key)
        return sums.seconds / sums.calls if sums is not None and sums.calls else None

    def _mean_or_none_taken(self, key: str) -> float:
        """Seconds a call of what only adds to the work; where it was not measured it is left out, and that is said."""
        mean = self._mean(key)
        if mean is None:
            self.notes.append(f"{key} was not measured: the model goes without it, so the prediction may be too high")
            return 0.0
        return mean

    def _rate(self, key: str) -> tuple[float, float]:
        """Tokens a second, and seconds a call."""
        line = self._line(key)
        return 1 / line.per_unit_s, line.fixed_s

    def _decode(self, prompt: int) -> Decode:
        step = self._line("rollout.decode", flat=True)
        prefill = self._sums.get("rollout.prefill", CostSums())
        prefill_s = prefill.seconds / (len(self.lengths) * prompt) if prompt else 0.0
        return Decode(step.fixed_s, step.per_unit_s, self._config.rollout.slots, 1, prefill_s)

    def _work(self, stage: str) -> Work:
        if not self._workers(stage):
            return Work(1.0)  # of no worker
        tokens_per_s, call_s = self._rate(stage)
        return Work(tokens_per_s, call_s + self._mean_or_none_taken(f"{stage}.io"))

    def _training(self) -> Training:
        """One measured call is one step; the copy for the publisher is a fixed part of it, and the fixed part is spread over its micro-batches."""
        tokens_per_s, call_s = self._rate("train")
        micro = min(self._config.algorithm.micro_batch_groups, self._config.batch_size)
        step_s = call_s + self._mean_or_none_taken("publish")
        pieces = -(-self._config.batch_size // micro)
        return Training(tokens_per_s, micro, step_s / pieces + self._mean_or_none_taken("train.io"))

    def _prompt(self) -> int:
        """Mean prompt tokens: what the actor-forward stage read a row, less the mean response."""
        done = self._steps[-1].stages.get("actor_forward") if self._steps else None
        sums = self._sums.get("actor_forward")
        if done is None or sums is None or not done.done_rows:
            self.notes.append(f"prompt tokens were not measured: rollout.prompt_width = {self._config.rollout.prompt_width} is taken")
            return self._config.rollout.prompt_width
        return max(0, round(sums.size / done.done_rows - float(self.lengths.mean())))

    def _law(self, prompt: int) -> Lengths:
        """Says how the lengths are spread; the lengths themselves are those of the run."""
        mean, sigma, cap = float(self.lengths.mean()), float(np.log(self.lengths).std()), self._config.rollout.response_width
        constant = sigma == 0 or mean >= cap
        return Lengths("constant" if constant else "lognormal", mean, 0.0 if constant else sigma, cap, prompt, self._config.run.seed)

    def _say_what_is_left_out(self) -> None:
        self.notes.append("the switches of a synchronous loop were not measured: it is shown without them, faster than it could be")
        if self._config.cluster.kind == "cpu":
            self.notes.append("every worker ran on the CPU: a worker counts as a device, and more workers than free cores would slow each other down")
        if len(self.lengths) < LEAST_RESPONSES:
            self.notes.append(f"only {len(self.lengths)} responses were recorded: the tail of their lengths is uncertain")
        if self._config.evaluation.every is not None:
            self.notes.append("evaluations took replicas away in the run; the model has none")
        for key in ("reward", "advantage"):
            if mean := self._mean(key):
                self.notes.append(f"{key} ({1e3 * mean:.2g} ms a call) is not in the model: it is taken to keep up")


def _config(run_dir: Path) -> RunConfig:
    path = run_dir / CONFIG
    if not path.is_file():
        raise ConfigError(f"RUN = {run_dir}: it holds no {CONFIG}, so it is no run's directory. Name one, or a cost table (a .yaml file)")
    try:
        return RunConfig.decode(path.read_bytes())
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: it cannot be read ({error}); another version of the program wrote it. Use that version") from None


def _response_lengths(run_dir: Path) -> np.ndarray:
    """Every response that a rollout worker finished, in the order of the records; int64."""
    lengths = [length for record in _lines(run_dir / TIMELINE, TimelineRecord) for length in record.lengths]
    if not lengths:
        raise ConfigError(f"{run_dir}: response lengths were not measured: {TIMELINE} names none. Size a run that finished responses")
    return np.maximum(1, np.array(lengths, dtype=np.int64))


def _age(run_dir: Path, since_s: float) -> float | None:
    """Mean age in versions of the groups that were trained after that moment."""
    trained = (event for event in _lines(run_dir / EVENTS, Event) if event.dst == "trained" and event.t_s > since_s)
    ages = [float(age) for event in trained if isinstance(age := event.data.get("age"), (int, float))]
    return sum(ages) / len(ages) if ages else None


def _lines(path: Path, kind: type[T]) -> list[T]:
    """Complete lines of a file that may still grow, or end in the middle of a line after a crash; none if it is not there."""
    if not path.is_file():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    try:
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines() if line]
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: a line cannot be read ({error}). Nothing was computed; was it changed by hand?") from None
