"""TransferQueue: samples between the stages of a training run, as columns of tensors, with leases, versions and flow control.

    from transfer_queue.local import LocalQueue      # controller and shards in threads: try it
    from transfer_queue.client import QueueClient    # what a member uses
    from transfer_queue.messages import TopicSpec    # every record
    python -m transfer_queue serve FILE | status --controller URL | metrics --controller URL | keys DIR

Nothing is imported here, so that `transfer_queue.columns` costs a program no sockets. Programs written for the package TransferQueue 0.1.11 find its
names here (`import transfer_queue as tq; tq.init(); tq.kv_batch_put(…)`): each is imported from `transfer_queue.compat` when it is first asked for.
"""

_COMPAT = {
    "init": ("init", "close", "get_client", "get_metrics_endpoint"),
    "checkpoint": ("save_checkpoint", "load_checkpoint"),
    "kv": (
        *("kv_put", "kv_batch_put", "kv_batch_get", "kv_batch_get_by_meta", "kv_list", "kv_clear"),
        *("async_kv_put", "async_kv_batch_put", "async_kv_batch_get", "async_kv_batch_get_by_meta", "async_kv_list", "async_kv_clear"),
    ),
    "kv_meta": ("KVBatchMeta",),
    "batch_meta": ("BatchMeta",),
    "client": ("TransferQueueClient",),
    "streaming": ("StreamingDataset", "StreamingDataLoader"),
    "errors": ("StorageKeyNotFoundError",),
}
_PLACES = {name: f"transfer_queue.compat.{module}" for module, names in _COMPAT.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PLACES:  # a module of ours, too, is looked for here before it is imported
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
