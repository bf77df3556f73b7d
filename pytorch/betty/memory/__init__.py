"""What training takes in memory, estimated before anything runs or measured, and how much of it there is."""

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

__all__ = [
    "DryRun",
    "MemoryEstimate",
    "PeakMemory",
    "available_memory",
    "counted",
    "dry_run",
    "estimate_inference",
    "estimate_memory",
    "estimate_optimizer_step",
    "parse_size",
    "size_text",
    "states_its_memory",
    "uncounted",
]
