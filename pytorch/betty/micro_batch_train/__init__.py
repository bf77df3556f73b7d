"""Full batches in parts: partitioned, split into micro-batches, and trained on with accumulated gradients."""

from betty.lazy_package import offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from betty.micro_batch_train.block_dataloader import MicroBatchLoader, split
    from betty.micro_batch_train.graph_partitioner import METHODS, partition, partition_method, re_partition
    from betty.micro_batch_train.plan import MicroBatchPlan, model_estimate
    from betty.micro_batch_train.planner import plan_micro_batches
    from betty.micro_batch_train.redundancy import input_nodes, redundancy

__all__ = offer(
    __name__,
    {
        "betty.micro_batch_train.block_dataloader": ["MicroBatchLoader", "split"],
        "betty.micro_batch_train.graph_partitioner": ["METHODS", "partition", "partition_method", "re_partition"],
        "betty.micro_batch_train.plan": ["MicroBatchPlan", "model_estimate"],
        "betty.micro_batch_train.planner": ["plan_micro_batches"],
        "betty.micro_batch_train.redundancy": ["input_nodes", "redundancy"],
    },
)
