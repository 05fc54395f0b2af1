"""A receiver that is given no memory for a version: it takes its part in the broadcast, says so, and has the version when there is room again."""

from __future__ import annotations

import errno
import os
import threading

import pytest
from ce_helpers import bits, eventually, plain_weights, policy, running_publisher

from checkpoint_engine import pull
from checkpoint_engine.publisher_client import PublisherClient
from checkpoint_engine.receiver import NoRoom, Receiver
from shared_arena import Arena, ArenaUnreachable, Descriptor


def no_memory() -> OSError:
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Receivers' threads get no memory while this list is not empty. Mapping and bytes are tried by what it names."""
    scarce: list[str] = []
    grow, attach = Arena.grow, Arena.attach

    def short_grow(arena: Arena, nbytes: int) -> None:
        if "grow" in scarce and nbytes > arena.nbytes and _is_receiver():
            raise no_memory()
        grow(arena, nbytes)

    def short_attach(descriptor: Descriptor, writable: bool = False, private: bool = False) -> Arena:
        if "attach" in scarce and _is_receiver():
            raise no_memory()
        if "elsewhere" in scarce and _is_receiver():
            raise ArenaUnreachable("another host's")
        return attach(descriptor, writable, private)

    monkeypatch.setattr(Arena, "grow", short_grow)
    monkeypatch.setattr(pull.Arena, "attach", short_attach)
    return scarce


def _is_receiver() -> bool:
    return threading.current_thread().name.startswith("receiver-")


@pytest.mark.parametrize(("transport", "scarce"), [("collective", ["grow", "attach"]), ("pull", ["attach"]), ("pull", ["grow", "elsewhere"])])
def test_memory_that_comes_free_later_is_soon_enough(short: list[str], transport: str, scarce: list[str]) -> None:
    short += scarce
    errors: list[Exception] = []
    with running_publisher(bucket_bytes=4096, transport=transport) as publisher:
        client = PublisherClient(publisher.endpoint)
        poor = Receiver("poor", publisher.endpoint, on_error=errors.append)
        eventually(lambda: len(publisher._fanout.members) == 1)
        client.publish(policy(1), plain_weights(1), wait_s=5)
        weights = client.wait_published(policy(1), 5)
        eventually(lambda: len(errors) >= 2)
        assert all(isinstance(error, NoRoom) for error in errors), errors
        for words in ("poor has no room for", "tries again", "memory"):
            assert words in str(errors[0])
        assert (poor.latest(), poor.failure) == (None, None)
        short[:] = [word for word in short if word == "elsewhere"]
        eventually(lambda: poor.latest() == weights)
        with poor.get_weights() as held:
            assert [(name, bits(tensor)) for name, tensor in held] == [(name, bits(tensor)) for name, tensor in plain_weights(1)]
        poor.close()
        client.close()


def test_others_get_a_broadcast_at_once_though_one_has_no_memory(short: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = []
    reports: list[object] = []
    with running_publisher(bucket_bytes=4096, on_sync=reports.append) as publisher:
        client = PublisherClient(publisher.endpoint)
        poor, rich = Receiver("poor", publisher.endpoint, on_error=errors.append), Receiver("rich", publisher.endpoint)
        reserve = poor._cache.reserve

        def poor_reserve(*given: object) -> object:
            if short:
                raise no_memory()
            return reserve(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(poor._cache, "reserve", poor_reserve)
        short += ["attach"]
        eventually(lambda: len(publisher._fanout.members) == 2)
        client.publish(policy(1), plain_weights(1), wait_s=5)
        weights = client.wait_published(policy(1), 5)
        eventually(lambda: rich.latest() == weights)
        assert rich.counters.by_broadcast == 1, "the one without memory left the group in the middle"
        eventually(lambda: bool(errors))
        assert isinstance(errors[0], NoRoom)
        short.clear()
        eventually(lambda: poor.latest() == weights)
        eventually(lambda: len(reports) == 1)
        poor.close()
        rich.close()
        client.close()
