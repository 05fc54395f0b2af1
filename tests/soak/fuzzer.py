"""Nonsense to both servers while they work: `python -m tests.soak.fuzzer SETTINGS URL RECORDS`, SETTINGS as JSON.

After every burst the server must answer a sensible question, within HANG_S where it was killed meanwhile; no answer may be "internal"; and nobody may
be sent what is somebody else's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

import msgspec

from tests.soak.burst import Answers, Burst
from tests.soak.nonsense import NOISE, malformed, to_controller
from tests.soak.records import Fuzzed, Recorder
from tests.soak.settings import ASKED, PUT, Settings, seats
from transfer_queue import messages as m
from transfer_queue.client import QueueClient
from transfer_queue.operation.parent import end_with_stdin
from transfer_queue.operation.probe import FAILURES
from transfer_queue.shard import messages as sm
from transfer_queue.wire import decode_reply, decode_shard_reply, encode

BURST = 100  # messages
TRY_S = 10.0  # a question whose server was killed gets no answer: it is asked again after so long
HANG_S = 180.0
AGAIN_S = 0.2  # between two questions to a controller that is not there
SHARE = 0.9  # of the run: it is over before the run calms down
OWNER = "fuzzer#0"
PLACES = (-1, 0, 1, 32, 63, 64, 65, 96, 127, 128, 129, 4096, 2**62)  # where reads of two blocks of 64 bytes begin and end


class Fuzzer:
    def __init__(self, settings: Settings, client: QueueClient, note: Recorder) -> None:
        self._settings, self._client, self._note = settings, client, note
        self._rng = Random(settings.seed)
        self._answers = Answers(note)

    def run(self) -> None:
        bursts = max(2, self._settings.fuzz // BURST)
        begin = time.monotonic()
        for number in range(bursts):
            due = begin + number * SHARE * self._settings.seconds / bursts
            self._client.poll(max(0.0, due - time.monotonic()))
            if number % 2:
                self._at_a_shard()
            else:
                self._at_the_controller()
            self._note(Fuzzed(sent=dict(self._answers.sent), answers=dict(self._answers.kinds), slowest_s=self._answers.slowest_s))
        self._clean()

    # ------------------------------------------------------------ the controller

    def _at_the_controller(self) -> None:
        """As a member that joins anew for each burst: what its nonsense got hold of goes to others then."""
        topic = self._rng.choice([PUT, ASKED])
        with Burst(self._client.url, decode_reply, self._answers) as burst:
            joined = burst.ask(m.Register(name=NOISE, role=NOISE, pid=1, host="h"), TRY_S)
            incarnation = joined.incarnation if isinstance(joined, m.OkRegistered) else -1
            for _ in range(BURST):
                burst.send(to_controller(self._rng, burst.number(), incarnation, topic))
            answered = burst.ask(m.Status(), TRY_S) is not None
            burst.send([encode(m.Leave(id=burst.number(), member=NOISE, incarnation=incarnation))])
        self._answers.sent["controller"] += BURST
        if not answered:
            self._status()

    def _status(self) -> m.StatusRecord:
        """The controller's, which may have been killed."""
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            try:
                reply: m.OkStatus = self._client.status().result(TRY_S)
                return reply.status
            except FAILURES:
                self._client.poll(AGAIN_S)
        self._answers.wrong(f"the controller did not answer within {HANG_S:g} s after nonsense")
        raise TimeoutError("the controller hangs")

    # ------------------------------------------------------------ shards

    def _at_a_shard(self) -> None:
        """With two blocks of ours: what lies behind their ends is not for who names them."""
        shard = self._rng.choice(self._status().shards)
        with Burst(shard.endpoint, decode_shard_reply, self._answers) as burst:
            mine = self._rng.randbytes(128)
            written = burst.ask(sm.Write(owner=OWNER, cuts=[[0, 64, 128]]), TRY_S, [mine])
            for _ in range(BURST):
                if isinstance(written, sm.Written) and self._rng.random() < 0.2:
                    self._read_wildly(burst, written.first, mine)
                else:
                    burst.send(malformed(self._rng))
            if isinstance(written, sm.Written):
                burst.send([encode(sm.Free(id=burst.number(), blocks=[written.first, written.first + 1]))])
            answered = burst.ask(sm.ShardStatus(), TRY_S) is not None
        self._answers.sent["shard"] += BURST
        if not answered:
            self._ask_again(shard)

    def _read_wildly(self, burst: Burst, first: int, mine: bytes) -> None:
        turn = self._rng.randrange(2)
        start, stop = self._rng.choice(PLACES), self._rng.choice(PLACES)
        owned = 64 * turn <= start <= stop <= 64 * turn + 64
        request = sm.Read(id=burst.number(), columns=[sm.Ranges([first + turn], [start], [stop])])
        burst.send([encode(request)], mine[start:stop] if owned else b"")

    def _ask_again(self, shard: m.ShardInfo) -> None:
        """Until it answers, or another one is in its place."""
        deadline = time.monotonic() + HANG_S
        while shard in self._status().shards:
            with Burst(shard.endpoint, decode_shard_reply, self._answers) as burst:
                if burst.ask(sm.ShardStatus(), TRY_S) is not None:
                    return
            if time.monotonic() > deadline:
                self._answers.wrong(f"shard {shard.index} did not answer within {HANG_S:g} s after nonsense")
                return

    def _clean(self) -> None:
        """Owners that nonsense made up never join and never end: what they stored goes by hand."""
        ours = {seat.name for seat in seats()}
        for shard in self._status().shards:
            with Burst(shard.endpoint, decode_shard_reply, self._answers) as burst:
                stored = burst.ask(sm.ShardStatus(), TRY_S)
                strangers = [owner for owner in stored.owners if owner.rpartition("#")[0] not in ours] if stored is not None else []
                for owner in strangers:
                    burst.send([encode(sm.Sweep(id=burst.number(), owner=owner, keep=[]))])
                burst.ask(sm.ShardStatus(), TRY_S)


def main(settings: Settings, url: str, records: Path) -> None:
    end_with_stdin()
    note = Recorder(records, "fuzzer-0", 0)
    with QueueClient.outsider(url) as client:
        Fuzzer(settings, client, note).run()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Settings), sys.argv[2], Path(sys.argv[3]))
