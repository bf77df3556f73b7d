"""Real graphs for tests."""

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_graphs() -> Path:
    """The folder with cora.npz, citeseer.npz and tolokers.npz."""
    if not (SHARED_DATA / "cora.npz").exists():
        pytest.skip("the real graphs are not beside this checkout")
    return SHARED_DATA
