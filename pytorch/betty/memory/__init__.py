"""What training takes in memory, estimated before anything runs or measured, and how much of it there is."""

from betty.lazy_package import offer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from betty.memory.available import available_memory
    from betty.memory.dry_run import DryRun, dry_run
    from betty.memory.estimate import (
        MemoryEstimate,
        estimate_inference,
        estimate_memory,
        estimate_optimizer_step,
        states_its_memory,
    )
    from betty.memory.peak_memory import PeakMemory, counted, uncounted
    from betty.memory.sizes import parse_size, size_text

__all__ = offer(
    __name__,
    {
        "betty.memory.available": ["available_memory"],
        "betty.memory.dry_run": ["DryRun", "dry_run"],
        "betty.memory.estimate": [
            "MemoryEstimate",
            "estimate_inference",
            "estimate_memory",
            "estimate_optimizer_step",
            "states_its_memory",
        ],
        "betty.memory.peak_memory": ["PeakMemory", "counted", "uncounted"],
        "betty.memory.sizes": ["parse_size", "size_text"],
    },
)
