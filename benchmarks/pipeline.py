"""How much of the modelled machine's throughput the real control plane leaves: `python benchmarks/pipeline.py --json FILE`.

The real controller, shard, flow control, publisher and worker loops run over emulated accelerators, and are held against a simulation of the same
policy, lengths and split in which no message, copy or wake-up takes time. From the simulation alone: what asynchrony gains over the synchronous loop.
See benchmarks/README.md for what is measured how.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder

from asyncflow.sizing.advise import Advice, Option, advise
from asyncflow.sizing.costs import CostTable, Lengths, Split
from asyncflow.sizing.load import DEFAULT_TABLE, load_costs
from asyncflow.sizing.simulate import Simulated, measured_steps, simulate, warmup_steps
from benchmarks.emulated_run import Measured, Plan, run_emulated
from benchmarks.harness import Results, Row, arguments, compared, finish, machine

Policy = Literal["wait", "drop"]
Case = tuple[int, Policy]  # staleness, policy

GOAL = 0.95
IDLE = 0.30  # least share of the machine's CPU that stays idle, or nothing is claimed
MOST_SCALE = 25.0  # a wake-up that is a millisecond late is this many modelled ones
FORWARD_ROWS = 32  # in one call: in the simulation 8 to 64 make no difference, and a real call has a real cost
POLICIES: tuple[Policy, ...] = ("wait", "drop")


class Scope(msgspec.Struct, frozen=True):
    """What one call of the benchmark does."""

    tables: dict[str, CostTable]  # name in the rows → table; the first is the one that really runs
    real: tuple[int, ...]  # staleness of the real runs
    simulated: dict[str, tuple[int, ...]]  # table → staleness of the simulated rows
    least_steps: int  # measured ones of a real run, made up to whole windows
    rows_per_real_s: float  # trained and dropped ones: how fast the control plane is driven; sets the time scale
    best_too: bool  # run the advised split as well
    judged: bool  # whether throughput is held against its goal; what holds at any size always is


def full() -> Scope:
    tables = {"mean 1k": "", "mean 4k": "_mean_4k", "no tail": "_no_tail"}
    return Scope(
        tables={name: _with_rows(load_costs(f"{DEFAULT_TABLE.stem}{suffix}")) for name, suffix in tables.items()},
        real=(1, 4),
        simulated={"mean 1k": (0, 1, 2, 4, 5), "mean 4k": (1, 4), "no tail": (1, 4)},
        least_steps=8,
        rows_per_real_s=240.0,
        best_too=True,
        judged=True,
    )


def _with_rows(costs: CostTable) -> CostTable:
    return msgspec.structs.replace(costs, forward_rows=FORWARD_ROWS)


def quick() -> Scope:
    """Ten devices and short responses."""
    costs = load_costs(DEFAULT_TABLE)
    small = msgspec.structs.replace(
        costs,
        lengths=Lengths(law="lognormal", mean=100.0, sigma=1.0, cap=400, prompt=64, seed=1),
        decode=msgspec.structs.replace(costs.decode, max_running=16),
        train=msgspec.structs.replace(costs.train, minibatch_groups=4),
        batch_groups=8,
        group_rows=4,
        split=Split(rollout=4, actor_forward=1, ref_forward=1, trainer=2),
    )
    return Scope(tables={"quick": small}, real=(1,), simulated={"quick": (1,)}, least_steps=4, rows_per_real_s=200.0, best_too=False, judged=False)


def main() -> None:
    args = arguments(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    scope = quick() if args.quick else full()
    results = Results(rows=[], machine=machine())
    advices = advised(scope)
    results.add(*(row for (table, _), advice in advices.items() for row in gain_rows(table, advice)))
    table, costs = next(iter(scope.tables.items()))
    with tempfile.TemporaryDirectory(prefix="asyncflow-pipeline-") as folder:
        for staleness, policy in cases(scope.real):
            splits = [costs.split, *([advices[table, (staleness, policy)].best.split] if scope.best_too else [])]
            for split in dict.fromkeys(splits):
                results.add(*real_rows(scope, table, split, staleness, policy, Path(folder)))
    finish(results, args.json)


def cases(values: tuple[int, ...]) -> list[Case]:
    return [(staleness, policy) for staleness in values for policy in POLICIES]


# ------------------------------------------------------------------ the real control plane


def real_rows(scope: Scope, table: str, split: Split, staleness: int, policy: Policy, folder: Path) -> list[Row]:
    costs, warmup, steps = scope.tables[table], warmup_steps(staleness), measured_steps(staleness, scope.least_steps)
    perfect = simulate(costs, split, staleness, policy, steps=steps, warmup=warmup)
    rows_per_s = perfect.tokens_per_s / costs.lengths.mean * (1 + perfect.dropped_groups / (steps * costs.batch_groups))
    scale = float(min(MOST_SCALE, max(1.0, scope.rows_per_real_s // rows_per_s)))
    plan = Plan(costs, split, staleness, policy, warmup, steps, scale)
    measured = run_emulated(plan, folder / f"{split}-{staleness}-{policy}")
    return rows_of(measured, perfect, f"{table} {split} staleness {staleness} {policy}", _unclaimed(scope, measured))


def _unclaimed(scope: Scope, measured: Measured) -> str:
    """Why the goal of throughput is not judged; empty where it is."""
    if not scope.judged:
        return "--quick"
    return f"less than {IDLE:.0%} of the CPU was idle" if measured.idle_share < IDLE else ""


def rows_of(measured: Measured, perfect: Simulated, name: str, unclaimed: str) -> list[Row]:
    plan = measured.plan
    how = (
        f"scale {plan.time_scale:g}, {plan.steps} steps after {plan.warmup} of warm-up, {measured.idle_share:.0%} of the CPU idle, "
        f"{measured.own_share:.0%} this run's"
    )
    why = f"; not claimed: {unclaimed}" if unclaimed else ""
    overhead_ms = (measured.seconds - perfect.seconds) / plan.time_scale / measured.samples * 1e3
    size = f"{measured.processes} processes, {measured.memory_mib:.0f} MiB, up in {measured.start_real_s:.1f} s"
    return [
        compared(
            f"{name}: real control plane",
            measured.tokens_per_s_device,
            "tokens/s/device",
            perfect.tokens_per_s_device,
            at_least=GOAL,
            claimed=not unclaimed,
            note=how + why,
        ),
        Row(name=f"{name}: overhead", value=overhead_ms, unit="ms/sample", note=f"of this machine's time; {how}"),
        Row(name=f"{name}: staleness mean", value=measured.staleness_mean, unit="versions", reference=perfect.staleness_mean, note=_ages(measured)),
        Row(
            name=f"{name}: staleness max",
            value=measured.staleness_max,
            unit="versions",
            reference=float(perfect.staleness_max),
            goal=float(plan.staleness),
            met=measured.staleness_max <= plan.staleness,
        ),
        Row(name=f"{name}: processes with torch", value=len(measured.torch), unit="processes", goal=0.0, met=not measured.torch, note=size),
    ]


def _ages(measured: Measured) -> str:
    return f"over tokens; the reference, of the simulation, over groups by their oldest token; {measured.dropped_groups} groups dropped"


# ------------------------------------------------------------------ the simulation alone


def advised(scope: Scope) -> dict[tuple[str, Case], Advice]:
    """One process a core: nothing else is measured meanwhile."""
    wanted = [(table, case) for table, values in scope.simulated.items() for case in cases(values)]
    with ProcessPoolExecutor() as pool:
        found = pool.map(advise, *zip(*((scope.tables[table], *case) for table, case in wanted), strict=True))
        return dict(zip(wanted, found, strict=True))


def gain_rows(table: str, advice: Advice) -> list[Row]:
    return [
        _gain(f"{table} {option.split}{label} staleness {advice.staleness} {advice.policy}: against the synchronous loop", option, advice.synchronous)
        for label, option in (("", advice.present), (" (best)", advice.best))
    ]


def _gain(name: str, option: Option, synchronous: float) -> Row:
    """Simulated, and said so: nothing of it ran."""
    loses = "" if option.tokens_per_s_device > synchronous else "; asynchrony does not pay here"
    note = f"staleness mean {option.staleness_mean:.2f}, {option.dropped_share:.0%} of the groups dropped{loses}"
    return compared(name, option.tokens_per_s_device, "tokens/s/device, simulated", synchronous, note=note)


if __name__ == "__main__":
    main()
