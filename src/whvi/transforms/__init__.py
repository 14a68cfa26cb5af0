"""The Walsh-Hadamard transform: one meaning, a C kernel on the CPU, plain torch elsewhere."""

from whvi.transforms.fwht import fwht, fwht_
from whvi.transforms.plain import hadamard_matrix

__all__ = ["fwht", "fwht_", "hadamard_matrix"]
