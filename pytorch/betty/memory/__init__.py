"""What training takes in memory: measured, and known before anything runs."""

from betty.memory.dry_run import DryRun, dry_run
from betty.memory.peak_memory import PeakMemory, counted

__all__ = ["DryRun", "PeakMemory", "counted", "dry_run"]
