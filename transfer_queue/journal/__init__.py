"""What lets the queue's controller end at any moment and come back: every input of its state machine on disk before anything leaves.

Read `records.py` (an input), `pages.py` (what is written at once), `journal.py` (when), `recovery.py` (back again), `serving.py` (the process).
Why: "Journal" in `docs/transfer_queue.md`.
"""
