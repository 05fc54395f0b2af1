"""Signals that are waited for beside sockets, and a process that ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.connection import wait

from serving import ROOT, SOON_S

from transfer_queue.operation.parent import ORPHANED
from transfer_queue.operation.signals import CAUGHT, Signals


def test_signals_are_noted_in_order_wake_a_wait_and_raise_nowhere() -> None:
    with Signals() as signals:
        assert signals.take() == []
        assert wait([signals], 0.0) == []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert wait([signals], SOON_S) == [signals]
        assert signals.take() == signals.received == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]
        assert wait([signals], 0.0) == []


def test_afterwards_the_handlers_are_those_of_before_and_no_descriptor_is_left() -> None:
    before, descriptors = [signal.getsignal(number) for number in CAUGHT], set(os.listdir("/proc/self/fd"))
    with Signals():
        assert [signal.getsignal(number) for number in CAUGHT] != before
    assert [signal.getsignal(number) for number in CAUGHT] == before
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_more_signals_than_a_pipe_holds_block_nobody() -> None:
    with Signals() as signals:
        for _ in range(1 << 17):
            signals._note(signal.SIGINT, None)
        assert signals.take() == [signal.SIGINT] * 64


def test_under_nohup_the_end_of_the_terminal_ends_nothing() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.take() == []
    finally:
        signal.signal(signal.SIGHUP, previous)


ATTACHED = "from transfer_queue.operation import parent; parent.GRACE_S = 0.2; import signal, threading; {}; parent.end_with_stdin(); "
ATTACHED += "print('up', flush=True); threading.Event().wait(60)"


def attached(first: str) -> tuple[int, str]:
    """Exit code and output of a process whose standard input ends once it is up."""
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", ATTACHED.format(first)], stdin=pipe, stdout=pipe, env=environment, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.stdin.close()
        return child.wait(SOON_S), child.stdout.read()


def test_a_process_ends_with_its_parent_politely_where_it_can_and_hard_where_it_does_not() -> None:
    assert attached("pass") == (-signal.SIGTERM, "")
    assert attached("signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))") == (ORPHANED, "asked\n")
