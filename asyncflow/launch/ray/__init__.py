"""Workers on the nodes of a Ray cluster. `ray` is imported inside functions only: a run on one machine needs none of it."""
