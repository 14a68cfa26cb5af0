"""Training: a config in, a history out; checkpoints, guards and replicas in between."""

from __future__ import annotations

from whvi.training.checkpoint import Checkpoints
from whvi.training.config import FitConfig
from whvi.training.distributed import average_gradients
from whvi.training.history import History, StepRecord
from whvi.training.loop import fit

__all__ = ["Checkpoints", "FitConfig", "History", "StepRecord", "average_gradients", "fit"]
