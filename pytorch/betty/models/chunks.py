"""Working on tensors piece by piece, so that temporaries are small and stay in the cache."""

from collections.abc import Iterator

from torch import Tensor

SERIAL_ELEMENTS = 1 << 15
"""Up to so many PyTorch starts no threads, which for little work, or beside other processes, are what takes time."""


def row_chunks(num_elements: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors with the same number of rows into pieces of the same rows.

    Args:
        num_elements: of a piece of the first tensor, unless a row has more.
        tensors: ``[num_rows, ...]`` each.

    Returns:
        A tuple of views for every piece.
    """
    columns = max(1, tensors[0][:1].numel())
    return zip(*(tensor.split(max(1, num_elements // columns)) for tensor in tensors), strict=True)
