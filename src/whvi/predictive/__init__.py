"""The predictive distribution of targets: a mixture over draws of the network."""

from whvi.predictive.components import align_targets
from whvi.predictive.mixture import Interval, Predictive

__all__ = ["Interval", "Predictive", "align_targets"]
