"""Running a queue and looking at it: its processes, its status, its metrics. What a queue does is not decided here."""
