"""A source of full batches for tests."""

from betty import FullBatch


class FixedFullBatches:
    """The same full batches in every epoch."""

    def __init__(self, full_batches: list[FullBatch]) -> None:
        self.full_batches = full_batches
        self.num_batches = len(full_batches)

    def load(self, epoch: int, batch: int) -> FullBatch:
        return self.full_batches[batch]
