"""The predictive distribution of targets: a mixture over draws of the network."""

from whvi.predictive.mixture import Interval, Predictive
from whvi.predictive.parameters import align_targets

__all__ = ["Interval", "Predictive", "align_targets"]
