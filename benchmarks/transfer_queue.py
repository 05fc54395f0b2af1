"""How near the queue comes to what the machine can do, and how far its peers are: `python benchmarks/transfer_queue.py --json FILE`.

Limits and peers are measured in the same run, taking turns with ours. See benchmarks/README.md for what is measured how.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, Python knows only this folder, and takes this file for the package

from benchmarks.harness import Results, Row, arguments, finish, machine
from benchmarks.queue_bench import bulk, memory, samples, sockets
from benchmarks.queue_bench.asking import ROOT
from benchmarks.queue_bench.measure import Bench
from benchmarks.queue_bench.peers import Peers
from benchmarks.queue_bench.scope import full, quick
from benchmarks.quiet import judged

PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "put-get": bulk.one_client,
    "same-rows": bulk.same_number_of_rows,
    "put-several": bulk.several_clients,
    "gather": bulk.rows_of_many_puts,
    "tcp": sockets.over_sockets,
    "samples": samples.one_client,
    "samples-several": samples.several_clients,
    "stored": samples.with_rows_stored,
    "memory": memory.per_payload,
}
UNTIMED = {"memory"}


def main() -> None:
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part of it, may be given several times; without it: all")
    parser.add_argument("--peers", type=Path, metavar="DIR", default=ROOT / ".cache" / "queue_peers", help="where the peers' environments are made")
    parser.add_argument("--no-peers", action="store_true", help="ours and the limits alone")
    args = parser.parse_args()
    results = Results(rows=[], machine=machine())
    with Peers(args.peers, wanted=not args.no_peers) as peers:
        bench = Bench(quick() if args.quick else full(), peers)
        for name in args.only or PARTS:
            results.add(*judged(lambda name=name: PARTS[name](bench), is_quick=args.quick, timed=name not in UNTIMED))
    finish(results, args.json)


if __name__ == "__main__":
    main()
