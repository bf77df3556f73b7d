"""Real graphs for tests, and signals that reach the processes of tests."""

import signal
from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def real_graphs() -> Path:
    """The folder with cora.npz, citeseer.npz and tolokers.npz."""
    if not (SHARED_DATA / "cora.npz").exists():
        pytest.skip("the real graphs are not beside this checkout")
    return SHARED_DATA


def pytest_configure() -> None:
    """Let interrupts reach the processes that tests start, where a shell has put the tests out of their reach."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
