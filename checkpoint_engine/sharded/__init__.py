"""Weights of a model that is spread over ranks (FSDP2: DTensors), streamed tensor by tensor under the names that Hugging Face saves.

`ShardedWalk` is what every rank walks; `ShardedClient` hands a version over to the publisher that way. torch is needed from here on.
"""

from checkpoint_engine.sharded.adapter import AdapterConfig, adapter_config
from checkpoint_engine.sharded.client import ShardedClient
from checkpoint_engine.sharded.exchange import WalkBroken
from checkpoint_engine.sharded.names import adapter_names, base_name
from checkpoint_engine.sharded.walk import ShardedWalk
from checkpoint_engine.walking import WalkAbandoned

__all__ = ["AdapterConfig", "ShardedClient", "ShardedWalk", "WalkAbandoned", "WalkBroken", "adapter_config", "adapter_names", "base_name"]
