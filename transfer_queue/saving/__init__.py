"""The whole queue in a folder and back: `save` while it works, `load` into an empty one with any number of shards.

Read `places.py` (which bytes an image names), `folder.py` (what lies on the disk), `saver.py` and `loader.py`.
"""
