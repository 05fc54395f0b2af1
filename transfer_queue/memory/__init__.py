"""Memory that arrays live in: the mapped arena of a shard, and buffers of our own that are used again."""
