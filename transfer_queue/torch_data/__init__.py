"""torch's DataLoader over a topic. This package alone needs torch to be imported.

    from transfer_queue.torch_data import QueueDataset, QueueLoader

    loader = QueueLoader(QueueDataset(url, "policy", "trainer", limit=8), num_workers=2)
    for batch in loader: ...
"""

from transfer_queue.torch_data.batch import Batch, JaggedTensor, Masked
from transfer_queue.torch_data.dataset import QueueDataset
from transfer_queue.torch_data.loader import QueueLoader
from transfer_queue.torch_data.receipts import Receipt
from transfer_queue.torch_data.steps import OpenStep

__all__ = ["Batch", "JaggedTensor", "Masked", "OpenStep", "QueueDataset", "QueueLoader", "Receipt"]
