"""Full batches: sampled, stored and read back."""

from betty.lazy_package import offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from betty.full_batch.manifest import Recipe
    from betty.full_batch.sampling import FullBatchSource, SampledFullBatches, epoch_batches, sample_full_batch
    from betty.full_batch.store import FullBatchWriter, StoredFullBatches

__all__ = offer(
    __name__,
    {
        "betty.full_batch.manifest": ["Recipe"],
        "betty.full_batch.sampling": ["FullBatchSource", "SampledFullBatches", "epoch_batches", "sample_full_batch"],
        "betty.full_batch.store": ["FullBatchWriter", "StoredFullBatches"],
    },
)
