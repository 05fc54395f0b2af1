"""What every test of the controller starts from: a fake clock, an observer that replays, and the topic of the pipeline."""

from __future__ import annotations

from typing import Any

from transfer_queue import messages as m


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Log:
    """An observer that keeps everything, and replays group events into a second ledger."""

    def __init__(self) -> None:
        self.events: list[m.Event] = []
        self.states: dict[tuple[str, int], str] = {}  # (topic, gid) -> state of its present life
        self.counts: dict[str, int] = {}
        self.admitted = 0

    def on_event(self, event: m.Event) -> None:
        self.events.append(event)
        if event.kind != "group":
            return
        key = (event.topic, event.gid)
        before = self.states.get(key, "")
        if event.src:
            assert before == event.src, f"group {event.gid} left {event.src!r} but was {before!r}"
            self.counts[before] -= 1
        else:
            assert before in ("", "dropped"), f"group {event.gid} was admitted while {before!r}"
            self.admitted += 1
        self.states[key] = event.dst
        counted = f"dropped:{event.reason}" if event.dst == "dropped" else event.dst
        self.counts[counted] = self.counts.get(counted, 0) + 1

    def of(self, kind: str) -> list[m.Event]:
        return [event for event in self.events if event.kind == kind]


def spec(batch: int = 4, staleness: int | None = 2, policy: m.Policy = "wait", rows: int = 2, **window: Any) -> m.TopicSpec:
    """prompt → tokens, reward, old_logprobs → advantage → trainer."""
    per_token: dict[str, Any] = {"dtype": "uint8", "kind": "per_token"}
    scalar: dict[str, Any] = {"dtype": "uint8", "kind": "scalar"}
    columns = (
        m.Column(name="prompt", producer="source", shared=True, **per_token),
        m.Column(name="tokens", producer="rollout", **per_token),
        m.Column(name="reward", producer="reward", **scalar),
        m.Column(name="old_logprobs", producer="forward", **per_token),
        m.Column(name="advantage", producer="advantage", **scalar),
    )
    consumers = (
        m.Consumer(name="reward", inputs=("prompt", "tokens"), outputs=("reward",), sampler="in_order"),
        m.Consumer(name="forward", inputs=("prompt", "tokens"), outputs=("old_logprobs",), needs_weights=True),
        m.Consumer(name="advantage", inputs=("reward",), outputs=("advantage",), unit="group"),
        m.Consumer(name="trainer", inputs=("prompt", "tokens", "old_logprobs", "advantage"), unit="group", terminal=True, sampler="in_order"),
    )
    return m.TopicSpec(
        name="policy",
        model="policy",
        columns=columns,
        consumers=consumers,
        prompts_bound=window.pop("prompts_bound", 8),
        rows_per_group=rows,
        window=m.Window(batch=batch, staleness=staleness, policy=policy, **window),
    )
