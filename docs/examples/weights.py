"""The weights of a torch model from one process to two others, by `checkpoint_engine` alone: python docs/examples/weights.py"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from queue import SimpleQueue

import torch

from checkpoint_engine import Publisher, PublisherClient, Receiver, WeightsId

LAST = 3  # the version that everybody waits for
WAIT_S = 60.0  # the most that anything here may take


def publish(said: Connection, stop: Event) -> None:
    """A process beside the trainer: it keeps the newest version in host memory and serves it to whoever comes, whatever the trainer does."""
    publisher = Publisher("policy")
    said.send(publisher.endpoint)  # a free port of 127.0.0.1: all that the others must know
    publisher.run(stop)


def follow(name: str, endpoint: str) -> None:
    """A process that computes with the weights. Versions that come while it is busy are passed over for the newest."""
    news: SimpleQueue[WeightsId] = SimpleQueue()  # filled by the receiver's own thread
    receiver = Receiver(name, endpoint, on_ready=news.put, on_error=lambda error: print(f"{name}: {error}; the old weights stay, it tries again"))
    model = torch.nn.Linear(64, 64)
    version = 0
    while version < LAST:
        news.get(timeout=WAIT_S)
        with receiver.get_weights() as held:  # the newest that is here, whole and verified
            model.load_state_dict(dict(held))  # copies: what `held` yields is read-only and ends with it
            version = held.weights.version
    print(f"{name} computes with {held.weights}, sum {sum(p.double().sum().item() for p in model.parameters()):.6f}", flush=True)
    receiver.close()


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    hears, said = spawn.Pipe(duplex=False)
    stop = spawn.Event()
    publisher = spawn.Process(target=publish, args=(said, stop), daemon=True)
    publisher.start()
    if not hears.poll(WAIT_S):
        raise SystemExit("the publisher did not start")
    endpoint = hears.recv()
    followers = [spawn.Process(target=follow, args=(f"follower-{i}", endpoint), daemon=True) for i in range(2)]
    for follower in followers:
        follower.start()

    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    client = PublisherClient(endpoint)
    for version in range(1, LAST + 1):
        optimizer.zero_grad()
        model(torch.ones(1, 64)).square().sum().backward()
        optimizer.step()
        client.publish(WeightsId("policy", 0, version), model.state_dict().items, wait_s=WAIT_S)  # back as soon as they are copied out
    weights = client.wait_published(WeightsId("policy", 0, LAST), WAIT_S)  # the same with its digest
    print(f"published {weights}, sum {sum(p.double().sum().item() for p in model.parameters()):.6f}", flush=True)
    client.close()

    for follower in followers:
        follower.join(WAIT_S)
    stop.set()  # after they have it: a version is served only as long as its publisher lives
    publisher.join(WAIT_S)
    if [process.exitcode for process in (publisher, *followers)] != [0, 0, 0]:
        raise SystemExit("a process failed")


if __name__ == "__main__":
    main()
