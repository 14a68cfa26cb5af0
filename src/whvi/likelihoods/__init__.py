"""Likelihoods: what function values say about targets, and the predictive they imply.

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

from whvi.likelihoods.balanced import BalancedGradients
from whvi.likelihoods.base import Likelihood
from whvi.likelihoods.gaussian import Gaussian, HeteroscedasticGaussian
from whvi.likelihoods.labels import Bernoulli, Categorical
from whvi.likelihoods.poisson import Poisson
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
