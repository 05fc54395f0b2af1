"""Keyed partitions: read `partition.py` (keys, numbers, tags), `cells.py` (one column), `handling.py` (requests), `taking.py` (what a task had)."""
