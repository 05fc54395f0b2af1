"""TransferQueue: samples between the stages of a training run, as columns of tensors, with leases, versions and flow control.

    from transfer_queue.local import LocalQueue      # controller and shards in threads: try it
    from transfer_queue.client import QueueClient    # what a member uses
    from transfer_queue.messages import TopicSpec    # every record
    python -m transfer_queue serve FILE | status --controller URL | metrics --controller URL | keys DIR

Nothing is imported here, so that `transfer_queue.columns` costs a program no sockets.
"""
