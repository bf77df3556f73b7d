"""Betty: train graph neural networks on batches that do not fit on the device, with the result of the whole batch."""

try:
    # What is behind Python's module of signals, whose own import takes longer than all that is held back for.
    import _signal
    import sys

    # Python is on its way to a command, whose parent waits for interrupts, see watch.py: until it does, they are held
    # back.
    COMMANDS = {"betty.compare", "betty.full_batch", "betty.micro_batch_train", "betty.mini_batch_train"}
    if sys.argv[:1] == ["-m"] and not COMMANDS.isdisjoint(sys.orig_argv):
        _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])
except KeyboardInterrupt:
    # It came in the lines above, whichever of them are done.
    import _signal
    import sys

    if sys.argv[:1] != ["-m"]:
        raise
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])
    _signal.raise_signal(_signal.SIGINT)

from betty.lazy_package import offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from betty.blocks import Block, FullBatch, MicroBatch
    from betty.datasets import load_dataset
    from betty.errors import BettyError
    from betty.full_batch import sample_full_batch
    from betty.memory import MemoryEstimate, PeakMemory, estimate_memory
    from betty.micro_batch_train import MicroBatchPlan, partition, plan_micro_batches, re_partition, redundancy, split
    from betty.models import GAT, MLP, ExactDropout, GraphSAGE, dropout_key
    from betty.whole_batch_loss import WholeBatchLoss

__all__ = offer(
    __name__,
    {
        "betty.blocks": ["Block", "FullBatch", "MicroBatch"],
        "betty.datasets": ["load_dataset"],
        "betty.errors": ["BettyError"],
        "betty.full_batch": ["sample_full_batch"],
        "betty.memory": ["MemoryEstimate", "PeakMemory", "estimate_memory"],
        "betty.micro_batch_train": [
            "MicroBatchPlan",
            "partition",
            "plan_micro_batches",
            "re_partition",
            "redundancy",
            "split",
        ],
        "betty.models": ["GAT", "MLP", "ExactDropout", "GraphSAGE", "dropout_key"],
        "betty.whole_batch_loss": ["WholeBatchLoss"],
    },
)
__version__ = "0.1.0"
