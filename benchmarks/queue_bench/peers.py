"""The peers: each in a virtual environment of its own, made once, run as a process that is asked for measurements.

Requirements are pinned where the goal names a release. torch comes first and by its exact version, so that no later build with CUDA is drawn in.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.queue_bench.asking import Asked, ProcessFailed, ask_all

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
INSTALL_S = 1200.0
START_S = 180.0


class Peer(msgspec.Struct, frozen=True):
    name: str
    steps: list[list[str]]  # pip's requirements, one call each
    script: Path


TRANSFER_QUEUE = Peer("TransferQueue", [[TORCH], ["TransferQueue==0.1.11"]], HERE / "transfer_queue_peer.py")
RAY = Peer("Ray", [["ray==2.60.0", "numpy"]], HERE / "ray_peer.py")


class PeerMissing(Exception):
    """It cannot be installed or started here; the message is what a row says."""


class Peers:
    """Started when first asked for, ended with the context. A peer that failed once is not tried again."""

    def __init__(self, folder: Path, wanted: bool = True) -> None:
        self._folder, self._wanted = folder, wanted
        self._running: dict[str, Asked] = {}
        self._missing: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._stack = ExitStack()
        self._env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}  # ours: Ray would else leave one in the home folder
        self._env["RAY_TMPDIR"] = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rq", ignore_cleanup_errors=True))  # short: sockets

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, peer: Peer) -> Asked:
        """Raises PeerMissing."""
        if peer.name in self._missing:
            raise PeerMissing(self._missing[peer.name])
        if peer.name not in self._running:
            try:
                self._running[peer.name] = self._started(peer)
            except (PeerMissing, ProcessFailed) as error:
                self.give_up(peer, error)
                raise PeerMissing(self._missing[peer.name]) from error
        return self._running[peer.name]

    def give_up(self, peer: Peer, error: Exception) -> None:
        self._missing.setdefault(peer.name, f"{peer.name}: {str(error).splitlines()[0][:200]}")

    def why(self, peer: Peer) -> str:
        """Why it is not there; empty while it is."""
        return self._missing.get(peer.name, "")

    def more(self, peer: Peer, count: int, stack: ExitStack) -> list[Asked]:
        """`count` further clients of a peer, ended with `stack`; none where it is missing."""
        try:
            self.get(peer)
            asked = [stack.enter_context(self._process(peer)) for _ in range(count)]
            ask_all(asked, "start", count * START_S, address=self._addresses[peer.name])
        except (PeerMissing, ProcessFailed) as error:
            self.give_up(peer, error)
            return []
        return asked

    def _process(self, peer: Peer) -> Asked:
        return Asked(peer.script, python=environment(peer, self._folder), env=self._env)

    def _started(self, peer: Peer) -> Asked:
        if not self._wanted:
            raise PeerMissing("not asked for (--no-peers)")
        asked = self._stack.enter_context(self._process(peer))
        self._addresses[peer.name] = asked.ask("start", START_S).get("address", "")
        return asked


def environment(peer: Peer, folder: Path) -> str:
    """Its interpreter; made and filled on first use. Raises PeerMissing with pip's last line."""
    place = folder.absolute() / peer.name
    python, done = place / "bin" / "python", place / "installed"
    wanted = repr(peer.steps)
    if done.exists() and done.read_text() == wanted:
        return str(python)
    print(f"installing {peer.name} into {place}", file=sys.stderr, flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(place)])
    for step in peer.steps:
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
    done.write_text(wanted)
    return str(python)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"{' '.join(command[1:])} took more than {INSTALL_S:g} s") from error
    if done.returncode:
        raise PeerMissing(f"{' '.join(command[3:])}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
