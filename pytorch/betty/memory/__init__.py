"""What training takes of a device's memory, and how much of it there is."""

from betty.memory.available import available_memory
from betty.memory.estimate import MemoryEstimate, estimate_memory
from betty.memory.sizes import parse_size, size_text

__all__ = ["MemoryEstimate", "available_memory", "estimate_memory", "parse_size", "size_text"]
