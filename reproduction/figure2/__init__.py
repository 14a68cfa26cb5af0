"""Figure 2 of the paper: Gaussian processes, test error against the number of parameters."""

from reproduction.figure2.run import reproduce_figure2

__all__ = ["reproduce_figure2"]
