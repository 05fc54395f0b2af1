"""vLLM as a rollout engine: decoding runs in vLLM's own processes, this package is what stands between them and a rollout worker.

| file | holds |
|---|---|
| `settings` | what `rollout.options` may say |
| `engine` | the contract: `VllmRolloutEngine`, restart and reissue |
| `table` | the requests that have not ended, and their chunks |
| `process` | one life of vLLM: an `AsyncLLM` and its event loop in a thread |
| `arguments` | what vLLM is started with |
| `expected` | what a complete set of weights is |
| `staging` | weights in shared memory, for vLLM's processes to read |
| `traces` | files that killed processes leave behind |
| `transfer` | inside vLLM's worker processes: from there into the model |

vLLM is imported by `process`, `arguments` and `transfer` only, and only when an engine starts.
"""
