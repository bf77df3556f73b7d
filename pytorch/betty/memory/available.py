"""How much of a device's memory training may take."""

from __future__ import annotations

from pathlib import Path

import torch

from betty.errors import BettyError

MARGIN = 0.1
"""The share of the free memory that is left alone: for other programs, pieces too small to use, and libraries."""

SYSTEM = Path("/")

CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""A container's limit, its use, and the file and line that tell what of that is files' contents which can go.

Of version 2 and 1; paths below ``/sys/fs/cgroup``.
"""


def available_memory(device: torch.device, system: Path = SYSTEM) -> int:
    """Bytes of a device's memory that are free now, less :data:`MARGIN`.

    On CUDA what PyTorch's allocator holds and does not use counts as free. On the CPU it is what Linux counts as
    available, or what is left to the container, where that is less.

    Args:
        device: where to train.
        system: the root of the file system that tells of the host's memory.

    Raises:
        BettyError: the device or the system does not tell.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    elif device.type == "cpu":
        free = _available_host_memory(system)
    else:
        raise BettyError(f"{device} does not tell how much memory is free; give a size like 20GiB instead of auto")
    return int(free * (1 - MARGIN))


def _available_host_memory(system: Path) -> int:
    try:
        lines = (system / "proc" / "meminfo").read_text().splitlines()
        (kibibytes,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError) as error:
        raise BettyError(
            "this system does not tell how much memory is free; give a size like 20GiB instead of auto"
        ) from error
    left = (_left_in_cgroup(system / "sys" / "fs" / "cgroup", *files) for files in CGROUP_FILES)
    return min([1024 * kibibytes, *(size for size in left if size is not None)])


def _left_in_cgroup(root: Path, limit: str, used: str, statistics: str, files: str) -> int | None:
    """Bytes that a container may still take; ``None`` where nothing limits it."""
    try:
        lines = dict(line.split() for line in (root / statistics).read_text().splitlines())
        return max(0, int((root / limit).read_text()) - int((root / used).read_text()) + int(lines[files]))
    except (OSError, ValueError, KeyError):
        return None
