"""What training takes in memory: measured, and estimated before anything runs."""

from betty.memory.estimate import MemoryEstimate, estimate_inference, estimate_memory

__all__ = ["MemoryEstimate", "estimate_inference", "estimate_memory"]
