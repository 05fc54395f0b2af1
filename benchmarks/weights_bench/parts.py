"""The rows of the benchmark of weights, part by part. Every part starts its own processes; sides take turns, and values are medians."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec

from benchmarks.harness import Row, compared
from benchmarks.processes import memory_mib
from benchmarks.queue_bench.asking import Asked, ask_all, together_s
from benchmarks.queue_bench.measure import Parts, alternate, at_most, value_at_most
from benchmarks.weights_bench.payload import Model

PUBLISHING, TRAINING, FOLLOWING, BARE = (f"benchmarks.weights_bench.{name}" for name in ("publishing", "training", "following", "bare"))
SLOT_TURNS = 4  # the first version is laid out while it is walked, the second takes the other slot: warm from then on
RECEIVERS = 2
POLL_S = 0.02


class Scope(msgspec.Struct, frozen=True):
    model: Model
    repeats: int


class Sender:
    """A publisher and its trainer."""

    def __init__(self, stack: ExitStack, scope: Scope, transport: str, spare: int = 1) -> None:
        self.publisher, self.trainer = (stack.enter_context(Asked(script)) for script in (PUBLISHING, TRAINING))
        self.endpoint = self.publisher.ask("start", transport=transport, spare=spare)["endpoint"]
        self.trainer.ask("make", model=msgspec.to_builtins(scope.model))
        self.trainer.ask("join", endpoint=self.endpoint)

    @property
    def pids(self) -> list[int]:
        return [self.publisher.pid, self.trainer.pid]

    def publish(self) -> dict[str, Any]:
        reply = self.trainer.ask("publish")
        assert reply["path"] == "shared", "this benchmark is of one host"
        return reply

    def await_members(self, count: int) -> None:
        pause = threading.Event()
        while self.publisher.ask("members")["count"] < count:
            pause.wait(POLL_S)


# ------------------------------------------------------------------ speed


def trainer_blocked(scope: Scope) -> Iterator[Row]:
    """Asking for a slot, copying, committing: until the trainer may train on."""
    with ExitStack() as stack:
        sender = Sender(stack, scope, "pull")
        sender.trainer.ask("limits")

        def ours() -> Parts:
            reply = sender.publish()
            assert reply["blocked_s"] >= 0, "a slot was free"
            return {"blocked": reply["blocked_s"], "walk": reply["walk_s"]}

        found = alternate(scope.repeats, {"ours": ours, "memcpy": lambda: sender.trainer.ask("memcpy")}, warmups=SLOT_TURNS)
    blocked, memcpy, walk = (1e3 * found[name] for name in ("ours blocked", "memcpy s", "ours walk"))
    yield at_most("trainer blocked per version, warm slot", blocked, "ms", memcpy, 1.2, f"{_size(scope)}; against one memcpy a tensor")
    yield Row(name="of that, gather", value=walk, unit="ms", note="one rank has nothing to gather: the walk over its tensors")


def joiner(scope: Scope) -> Iterator[Row]:
    """From `Receiver(...)` in a process that has its libraries loaded until the newest version can be loaded, digests verified."""
    with ExitStack() as stack:
        sender = Sender(stack, scope, "pull")
        follower = stack.enter_context(Asked(FOLLOWING))
        sender.publish()
        follower.ask("limits", model=msgspec.to_builtins(scope.model))

        def ours() -> Parts:
            reply = follower.ask("join_and_leave", endpoint=sender.endpoint)
            assert (reply["by_pull_shared"], reply["failed"], reply["corrupt"]) == (1, 0, 0)
            return {"s": reply["s"]}

        found = alternate(scope.repeats, {"ours": ours, "limit": lambda: follower.ask("fresh_copy")})
    note = f"{_size(scope)}; mapped and verified in the publisher's slot, against a memcpy into fresh pages with digest"
    yield at_most("joiner, from registration to current weights", 1e3 * found["ours s"], "ms", 1e3 * found["limit s"], 1.5, note)


def broadcast(scope: Scope) -> Iterator[Row]:
    """From the trainer's commit until the last receiver has verified everything, the publisher's digest included."""
    with ExitStack() as stack:
        sender = Sender(stack, scope, "collective")
        followers = [stack.enter_context(Asked(FOLLOWING)) for _ in range(RECEIVERS)]
        for follower in followers:
            follower.ask("join", endpoint=sender.endpoint, collective=True)
        sender.await_members(RECEIVERS)
        ranks = _bare_group(stack, scope)

        def ours() -> Parts:
            begun = sender.publish()
            arrived = ask_all(followers, "arrived", version=begun["version"])
            assert all(reply["by_broadcast"] == begun["version"] for reply in arrived), f"one came by pull: {arrived}"
            ask_all(followers, "hold")  # as a load: without one a single slot is not written over
            return {"s": max(reply["end"] for reply in arrived) - begun["begin"]}

        found = alternate(scope.repeats, {"ours": ours, "bare": lambda: {"s": together_s(ask_all(ranks, "broadcast"))}}, warmups=SLOT_TURNS)
        send_s = sender.publisher.ask("last_sync")["sync"]["send_s"]
        assert all(reply["whole"] for reply in ask_all(followers, "check"))
    gb = scope.model.nbytes / 1e9
    note = f"{_size(scope)}; median {found['ours s']:.3f} s, the last one travelled for {send_s:.3f} s of its time; bare: gloo, one flat warm buffer"
    name = f"broadcast to {RECEIVERS} receivers, digests included"
    yield compared(name, gb / found["ours s"], "GB/s", gb / found["bare s"], at_least=0.85, note=note)


def _bare_group(stack: ExitStack, scope: Scope) -> list[Asked]:
    ranks = [stack.enter_context(Asked(BARE)) for _ in range(RECEIVERS + 1)]
    port = ranks[0].ask("host")["port"]
    for number, rank in enumerate(ranks):
        rank.send("form", port=port, rank=number, world=len(ranks), nbytes=scope.model.nbytes)
    for rank in ranks:
        rank.receive()
    return ranks


# ------------------------------------------------------------------ memory


def memory(scope: Scope) -> Iterator[Row]:
    """The largest growth of the proportional set sizes of all processes: pages that several share count once."""
    yield _sender_memory(scope, spare=1)
    yield _receiver_memory(scope, "receiver that maps the slot", collective=False, spare=None, most=1.2)
    yield _receiver_memory(scope, "receiver by broadcast", collective=True, spare=None, most=1.2)
    yield _receiver_memory(scope, "receiver by broadcast, two slots", collective=True, spare=1, most=None)


def _sender_memory(scope: Scope, spare: int) -> Row:
    with ExitStack() as stack:
        sender = Sender(stack, scope, "pull", spare)
        with Peak(sender.pids) as peak:
            for _ in range(2 * spare + 2):
                sender.publish()
    name = f"memory beyond the model, sender, N = {spare}"
    return value_at_most(name, peak.growth_mib / _mib(scope), "× model", spare + 1.2, f"{_size(scope)}; publisher and trainer")


def _receiver_memory(scope: Scope, who: str, collective: bool, spare: int | None, most: float | None) -> Row:
    """`spare` None: the default."""
    with ExitStack() as stack:
        sender = Sender(stack, scope, "collective" if collective else "pull")
        followers = [stack.enter_context(Asked(FOLLOWING)) for _ in range(RECEIVERS)]
        ask_all(followers, "ready")
        for _ in range(2):
            sender.publish()  # both slots of the sender: what grows from here on is the receivers'
        with Peak([*sender.pids, *(follower.pid for follower in followers)]) as peak:
            ask_all(followers, "join", endpoint=sender.endpoint, collective=collective, spare=spare)
            sender.await_members(RECEIVERS)
            ask_all(followers, "arrived", version=2)
            for version in range(3, 7):
                assert all(reply["whole"] for reply in ask_all(followers, "check"))  # as a load: without one a single slot is not written over
                sender.publish()
                arrived = ask_all(followers, "arrived", version=version)
    ways = ", ".join(f"{way} {sum(reply[way] for reply in arrived)}" for way in ("by_broadcast", "by_pull_shared", "by_pull_bytes"))
    name, value, note = f"memory beyond the model, {who}", peak.growth_mib / RECEIVERS / _mib(scope), f"{_size(scope)}; {RECEIVERS} of them: {ways}"
    if most is None:
        return Row(name=name, value=value, unit="× model", note=f"{note}; the version before stays loadable while the next arrives")
    return value_at_most(name, value, "× model", most, note)


class Peak:
    """Of the memory of all `pids` together, looked at every few hundredths of a second."""

    def __init__(self, pids: list[int]) -> None:
        self._pids, self._over = pids, threading.Event()
        self._start_mib = self._most_mib = memory_mib(pids)
        self._thread = threading.Thread(target=self._look)

    @property
    def growth_mib(self) -> float:
        return self._most_mib - self._start_mib

    def _look(self) -> None:
        while not self._over.wait(POLL_S):
            self._most_mib = max(self._most_mib, memory_mib(self._pids))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._most_mib = max(self._most_mib, memory_mib(self._pids))


def _mib(scope: Scope) -> float:
    return scope.model.nbytes / 2**20


def _size(scope: Scope) -> str:
    return f"{scope.model.nbytes / 1e9:.3g} GB in {len(scope.model.shapes())} tensors"
