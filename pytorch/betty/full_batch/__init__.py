"""Full batches: sampled, stored and read back."""

from betty.full_batch.manifest import Recipe
from betty.full_batch.sampling import FullBatchSource, SampledFullBatches, epoch_batches, sample_full_batch
from betty.full_batch.store import FullBatchWriter, StoredFullBatches

__all__ = [
    "FullBatchSource",
    "FullBatchWriter",
    "Recipe",
    "SampledFullBatches",
    "StoredFullBatches",
    "epoch_batches",
    "sample_full_batch",
]
