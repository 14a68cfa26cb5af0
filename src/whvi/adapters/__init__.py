"""Bayesian adapters: posteriors for pretrained models, their files, and several on one base."""

from whvi.adapters.adapted import Adapted, adapter_names, use_adapter
from whvi.adapters.conversion import convert, unconvert
from whvi.adapters.files import fingerprint, load_adapter, save_adapter

__all__ = [
    "Adapted",
    "adapter_names",
    "convert",
    "fingerprint",
    "load_adapter",
    "save_adapter",
    "unconvert",
    "use_adapter",
]
