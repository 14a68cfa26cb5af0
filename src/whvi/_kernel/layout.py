"""How any ``in_features`` × ``out_features`` map is made of square powers of two: integers only.

Section 2 of the paper defines WHVI for a square ``D × D`` matrix with ``D = 2**d``. Other shapes
are *plans* over such blocks:

- **stacked** (the usual case): the input is padded with zeros to ``D``, the smallest power of two
  that holds it; ``K`` independent blocks of height ``D`` share that input, and the last one is
  trimmed: ``y = [W_1 x; …; W_K x][:out_features]``.
- **column** (one side is 1): the single column or row of ``n`` weights is the leading part of
  ``vec(W)`` of one square block with ``D² ≥ n``: ``O(√n)`` parameters for ``n`` weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from whvi._checks import check_positive_int, next_power_of_two


@dataclass(frozen=True)
class BlockPlan:
    """Blocks that make up an ``in_features`` × ``out_features`` linear map.

    Attributes:
        in_features, out_features: The map that is wanted.
        block_size: ``D``, the side of a square block, a power of two.
        num_blocks: ``K``, how many blocks are stacked.
        is_column: Whether the weights are read off ``vec(W)`` of one block.
    """

    in_features: int
    out_features: int
    block_size: int
    num_blocks: int
    is_column: bool

    @classmethod
    def for_shape(cls, in_features: int, out_features: int) -> BlockPlan:
        """Plan an ``in_features`` × ``out_features`` map."""
        check_positive_int("in_features", in_features)
        check_positive_int("out_features", out_features)
        if min(in_features, out_features) == 1 and max(in_features, out_features) > 1:
            root = math.isqrt(max(in_features, out_features) - 1) + 1  # ⌈√n⌉ without floats
            return cls(in_features, out_features, next_power_of_two(root), 1, True)
        size = next_power_of_two(in_features)
        return cls(in_features, out_features, size, -(-out_features // size), False)

    @property
    def vector_shape(self) -> tuple[int, int]:
        """``(K, D)``: blocks and entries per block of each of ``s1``, ``g`` and ``s2``."""
        return (self.num_blocks, self.block_size)

    @property
    def vector_size(self) -> int:
        """``K·D``: entries of each of ``s1``, ``g`` and ``s2``."""
        return self.num_blocks * self.block_size

    @property
    def num_weights(self) -> int:
        """Entries of the dense matrix this plan stands for."""
        return self.in_features * self.out_features

    @property
    def is_exact(self) -> bool:
        """Whether nothing is padded or trimmed."""
        if self.is_column:
            return self.block_size**2 == self.num_weights
        return (
            self.in_features == self.block_size
            and self.out_features == self.num_blocks * self.block_size
        )
