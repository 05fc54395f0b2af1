"""What the parts of AsyncFlow agree on, one contract a file. Records that cross the queue's sockets are the queue's own (`transfer_queue.messages`).

| contract | where |
|---|---|
| stage: an entry of the pipeline, and its code | `stage` |
| rollout engine | `rollout` |
| train engine, loss | `train` |
| rows in a stage, in a model | `batch` |
| identity of weights | `weights` |
| what a worker is started with | `worker` |
| topic schema | `transfer_queue.messages`: Column, Consumer, Window, TopicSpec |
| group states and events | `transfer_queue.messages`: State, Event |
| commit, published | `transfer_queue.messages`: Commit, OkCommitted, Published |
| registration, heartbeat, desired state | `transfer_queue.messages`: Register, OkRegistered, Watch, Directive |
"""
