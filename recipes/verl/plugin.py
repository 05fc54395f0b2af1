"""What `import verl` loads of ours, in every process (the entry point `verl.plugins`): it looks whose folders these are, and makes the
platform and, once verl's trainers are imported, the trainer known.

verl logs what a plugin raises at DEBUG and goes on without it, so it is logged here first, at ERROR.
"""

from __future__ import annotations

import logging


def load() -> None:
    """Raises what went wrong."""
    try:
        from recipes.verl import registered
        from recipes.verl.folders import check_folders
        from recipes.verl.platform import register
        from recipes.verl.platform.after_import import after_import

        check_folders()
        register()
        after_import(registered.WAITS_FOR, registered.register)
    except Exception as error:  # verl drops whatever a plugin raises: it is to be seen in the log
        logging.getLogger(__name__).error("AsyncFlow's plugin for verl is not loaded: %s", error)
        raise


load()
