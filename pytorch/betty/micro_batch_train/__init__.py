"""Full batches in parts: partitioned, split into micro-batches, and trained on with accumulated gradients."""

from betty.micro_batch_train.block_dataloader import MicroBatchLoader, split
from betty.micro_batch_train.graph_partitioner import METHODS, partition, partition_method, re_partition
from betty.micro_batch_train.plan import MicroBatchPlan, model_estimate
from betty.micro_batch_train.planner import plan_micro_batches
from betty.micro_batch_train.redundancy import input_nodes, redundancy

__all__ = [
    "METHODS",
    "MicroBatchLoader",
    "MicroBatchPlan",
    "input_nodes",
    "model_estimate",
    "partition",
    "partition_method",
    "plan_micro_batches",
    "re_partition",
    "redundancy",
    "split",
]
