"""The interface of the package TransferQueue 0.1.11, over this queue, for programs that were written for it. The one corner that may import Ray or
tensordict.

Importing it makes sure that the folder is ours alone: what is raised is a RuntimeError and never an ImportError, which such programs take for "not
installed" and go on without a queue.
"""

from transfer_queue.compat.mixed import check_folder

check_folder("transfer_queue")
