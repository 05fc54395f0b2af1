"""The synchronous loop: all devices do each phase in turn. What asynchrony must beat."""

from __future__ import annotations

from asyncflow.sizing.costs import CostTable
from asyncflow.sizing.lengths import ResponseLengths, response_lengths
from asyncflow.sizing.model.clock import SimClock
from asyncflow.sizing.model.group import SimGroup
from asyncflow.sizing.model.replica import Replica


def simulate_synchronous(costs: CostTable, devices: int, steps: int = 10, lengths: ResponseLengths | None = None) -> float:
    """Trained response tokens a second and device, over `steps` steps: generate, switch, forward, ref, train, switch, load."""
    lengths = lengths or response_lengths(costs)
    batches = [[lengths.group(step * costs.batch_groups + place) for place in range(costs.batch_groups)] for step in range(steps)]
    seconds = sum(step_s(costs, devices, batch) for batch in batches)
    return sum(map(sum, (group for batch in batches for group in batch))) / seconds / devices


def step_s(costs: CostTable, devices: int, batch: list[list[int]]) -> float:
    """Seconds of one step; `batch`: [groups][rows] lengths."""
    tokens = sum(costs.row_tokens(length) for group in batch for length in group)
    forward = sum(work.call_s + tokens / (work.tokens_per_s * devices) for work in map(costs.work, costs.forwards))
    minibatches = -(-len(batch) // costs.train.minibatch_groups)
    train = tokens / (costs.train.tokens_per_s * devices) + minibatches * costs.train.minibatch_s
    return generate_s(costs, devices, batch) + forward + train + costs.pause.seconds + costs.switches * costs.switch_s


def generate_s(costs: CostTable, devices: int, batch: list[list[int]]) -> float:
    """Until the last row: groups are dealt out in turn to the replicas, what finds no slot starts where one becomes free."""
    clock = SimClock()
    waiting = [SimGroup(gid, 0, rows, Replica(-1, costs, clock, _nothing, _nothing_loaded), 0) for gid, rows in enumerate(batch)]
    waiting.reverse()

    def refill(replica: Replica, _: list[tuple[SimGroup, int]]) -> None:
        while waiting and replica.free >= costs.group_rows:
            replica.admit(waiting.pop())

    replicas = [Replica(index, costs, clock, refill, _nothing_loaded) for index in range(devices // costs.decode.devices)]
    admitted = True
    while admitted:
        admitted = False
        for replica in replicas:
            if waiting and replica.free >= costs.group_rows:
                replica.admit(waiting.pop())
                admitted = True
    last = 0.0
    while clock.step():
        last = clock.now
    return last


def _nothing(replica: Replica, rows: list[tuple[SimGroup, int]]) -> None:
    """A finish that nobody waits for."""


def _nothing_loaded(replica: Replica) -> None:
    """Weights do not change while a step generates."""
