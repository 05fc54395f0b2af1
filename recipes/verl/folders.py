"""Before anything of ours runs in a process of verl: `transfer_queue` and `checkpoint_engine` are AsyncFlow's, and nobody else wrote there."""

from __future__ import annotations

from importlib.util import find_spec


def check_folders() -> None:
    """Raises RuntimeError, never ImportError: verl takes that for "not installed", puts empty classes in our place and fails much later."""
    try:
        from transfer_queue.compat.mixed import check_folder
    except ImportError:  # another package's transfer_queue has no such module
        spec = find_spec("transfer_queue")
        place = spec.origin if spec is not None else "nothing"
        raise RuntimeError(
            f"`import transfer_queue` finds {place}, which is not AsyncFlow's: none of AsyncFlow's queue runs. To mend it: "
            "pip uninstall -y TransferQueue; pip install --force-reinstall --no-deps asyncflow; "
            "if something asks for that name, install a stub of it (constraints/stub_wheel.py)"
        ) from None
    for package in ("transfer_queue", "checkpoint_engine"):
        check_folder(package)
