"""What a question of the metrics' endpoint costs the controller: by the leases that are out, not by what is open or stored."""

from __future__ import annotations

import statistics
import time

from controller_bench import spec
from controller_desk import Desk
from controller_messages import put_rows

from transfer_queue import messages as m
from transfer_queue.wire import encode

QUESTIONS = 100


def asked(groups: int, leases: int) -> float:
    """Seconds of one question, its reply encoded, the median. So many groups are complete, so many members of a stage hold a lease of 8 rows."""
    desk = Desk(spec(batch=4, staleness=None, rows=2, budget_bytes=1 << 40, prompts_bound=groups + 1), heartbeat_s=1e9, stall_s=1e9, lease_s=1e9)
    desk.prompts(groups)
    rollout = desk.join("rollout-0")
    pulled = desk.pull(rollout, groups)
    rows = [desk.row(lease, row) for lease in pulled for row in lease.rows]
    desk.ask(rollout.connection, put_rows(rows, topic="policy", close={lease.gid: 2 for lease in pulled}, **rollout.fields), m.OkPut)
    for number in range(leases):
        desk.take(desk.join(f"worker-{number}", "worker"), "reward", limit=8)
    took = []
    for _ in range(QUESTIONS):
        begun = time.perf_counter()
        reply = desk.ask(b"x", m.Status(), m.OkStatus)
        encode(reply)
        took.append(time.perf_counter() - begun)
    topic = reply.status.topics[0]
    assert (topic.open, topic.consumers[0].leases, topic.consumers[0].leased_rows) == (groups, leases, 8 * leases)
    return statistics.median(took)


def test_a_question_at_10_000_open_groups_costs_less_than_three_times_that_at_100() -> None:
    few, many, held = asked(100, 8), asked(10_000, 8), asked(10_000, 200)
    print(f"8 leases: {few * 1e3:.3f} ms at 100 open groups, {many * 1e3:.3f} ms at 10,000; 200 leases: {held * 1e3:.3f} ms")
    assert many < 3 * few
    assert held < 3 * 200 / 8 * many
