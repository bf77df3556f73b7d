"""Progress bars that stay away where the log does."""

import logging
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)


class _Bar(tqdm):
    """Without tqdm's own thread, which redraws bars that stand still."""

    monitor_interval = 0


def progress_bar(iterable: Iterable[Any] | None = None, description: str = "", **options: Any) -> tqdm:
    """A :class:`tqdm.tqdm` for work that takes longer than a second, on terminals where the log shows messages."""
    # None hides the bar where the error stream is no terminal.
    disable = None if logger.isEnabledFor(logging.INFO) else True
    return _Bar(iterable, description, disable=disable, delay=1, leave=False, **options)
