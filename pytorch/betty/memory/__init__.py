"""What training takes in memory: measured, and known before anything runs."""

from betty.memory.peak_memory import PeakMemory, counted

__all__ = ["PeakMemory", "counted"]
