"""Likelihoods: the density of targets given function values, and the predictive it implies.

| on paper                                     | in code                    |
|----------------------------------------------|----------------------------|
| y = σ_y f + μ_y + ε, ε ~ N(0, σ²)            | ``Gaussian``               |
| the same with σ² a function of x             | ``HeteroscedasticGaussian``|
| the same with ε ~ t_ν(0, s)                  | ``StudentT``               |
| y ∈ {0, 1}, P(y = 1) = sigmoid(f)            | ``Bernoulli``              |
| y ∈ {0, …, C−1}, P(y = c) = softmax(f)_c     | ``Categorical``            |
| y ∈ {0, 1, 2, …}, mean r₀ exp(f)             | ``Poisson``                |
"""

from __future__ import annotations

from whvi.likelihoods.base import Likelihood
from whvi.likelihoods.discrete import Bernoulli, Categorical, Poisson
from whvi.likelihoods.gaussian import BalancedGradients, Gaussian, HeteroscedasticGaussian
from whvi.likelihoods.student_t import StudentT
from whvi.likelihoods.tempered import TemperedLikelihood

__all__ = [
    "BalancedGradients",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
    "StudentT",
    "TemperedLikelihood",
]
