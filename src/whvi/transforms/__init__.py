"""Orthonormal transforms: the Walsh-Hadamard one by a C kernel, others for ``transform=``."""

from whvi.transforms.butterfly import Butterfly, butterfly
from whvi.transforms.fwht import fwht, fwht_
from whvi.transforms.mixing import Hadamard, Mixing, Transform
from whvi.transforms.plain import hadamard_matrix
from whvi.transforms.registry import NAMES, TransformLike, make_mixing

__all__ = [
    "NAMES",
    "Butterfly",
    "Hadamard",
    "Mixing",
    "Transform",
    "TransformLike",
    "butterfly",
    "fwht",
    "fwht_",
    "hadamard_matrix",
    "make_mixing",
]
