"""The queue's controller: a pure state machine and the small loop that serves it.

Read `core.py` (what drives it), then `topic.py` (a group's life), `window.py` (the staleness bound) and `server.py` (the sockets).
"""
