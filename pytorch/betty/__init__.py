"""Betty: train graph neural networks on batches that do not fit on the device, with the result of the whole batch."""

from betty.blocks import Block, FullBatch, MicroBatch
from betty.datasets import load_dataset
from betty.errors import BettyError
from betty.full_batch import sample_full_batch
from betty.memory import MemoryEstimate, PeakMemory, estimate_memory
from betty.micro_batch_train import MicroBatchPlan, partition, plan_micro_batches, re_partition, redundancy, split
from betty.models import GAT, MLP, ExactDropout, GraphSAGE, dropout_key
from betty.whole_batch_loss import WholeBatchLoss

__all__ = [
    "GAT",
    "MLP",
    "BettyError",
    "Block",
    "ExactDropout",
    "FullBatch",
    "GraphSAGE",
    "MemoryEstimate",
    "MicroBatch",
    "MicroBatchPlan",
    "PeakMemory",
    "WholeBatchLoss",
    "dropout_key",
    "estimate_memory",
    "load_dataset",
    "partition",
    "plan_micro_batches",
    "re_partition",
    "redundancy",
    "sample_full_batch",
    "split",
]
__version__ = "0.1.0"
