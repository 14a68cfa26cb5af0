"""Figure 2 of the paper: Gaussian processes, test error against the number of parameters."""

from whvi.experiments.figure2.run import reproduce_figure2

__all__ = ["reproduce_figure2"]
