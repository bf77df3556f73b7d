"""What training takes in memory: measured, and estimated before anything runs."""

from betty.memory.dry_run import DryRun, dry_run
from betty.memory.estimate import MemoryEstimate, estimate_inference, estimate_memory
from betty.memory.peak_memory import PeakMemory, counted

__all__ = [
    "DryRun",
    "MemoryEstimate",
    "PeakMemory",
    "counted",
    "dry_run",
    "estimate_inference",
    "estimate_memory",
]
