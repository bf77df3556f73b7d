"""A sparse matrix in a user's ``.npz`` file, in SciPy's CSR form."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from betty.datasets.damage import one_line
from betty.datasets.npz_file import NpzFile


def read_csr(file: NpzFile, matrix: str, data: NDArray | None, shape: tuple[int, int]) -> sparse.csr_matrix:
    """The matrix of ``<matrix>_indices`` and ``<matrix>_indptr``, once every index is known to be in range.

    Args:
        file: with both keys.
        matrix: what the keys begin with.
        data: ``[nonzeros]``; ones if not given.
        shape: of the matrix.

    Raises:
        BettyError: they are not the CSR form of a matrix of that shape.
    """
    indices = file.integers(f"{matrix}_indices", "[nonzeros]")
    indptr = file.integers(f"{matrix}_indptr", "[N + 1]")
    data = np.ones(indices.size, dtype=np.int8) if data is None else data
    try:
        # SciPy looks at differences, which can overflow, and drops indices behind the last pointer.
        if indptr.size and not (indptr.min() >= 0 and indptr.max() == indptr[-1] == indices.size):
            raise ValueError(
                f"pointers from {indptr.min()} to {indptr.max()}, the last {indptr[-1]}, for {indices.size} indices"
            )
        rows = sparse.csr_matrix((data, indices, indptr), shape=shape)
        rows.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise file.error(
            f"{matrix}_indptr and {matrix}_indices are not a CSR matrix of shape {list(shape)} ({one_line(error)})"
        ) from error
    return rows


def read_shape(file: NpzFile, key: str) -> tuple[int, int]:
    """The shape of a sparse matrix.

    Raises:
        BettyError: it is not two numbers.
    """
    shape = file.integers(key, "[2]").tolist()
    if len(shape) != 2:
        raise file.error(f"{key} is {shape}; it has to be two numbers")
    return shape[0], shape[1]
