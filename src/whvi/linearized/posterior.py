r"""A linearised posterior: Gaussian over the parameters, hence over functions.

f(x; θ) ≈ f(x; θ*) + J(x) δ,   δ = θ − θ* ~ N(δ̄, Σ),   Σ⁻¹ = Σ_n JᵀRJ / τ + diag(λ)
f(x) ~ N(f(x; θ*) + J(x) δ̄,  J(x) Σ J(x)ᵀ)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from whvi._checks import check_positive_int
from whvi.errors import ConfigError
from whvi.functions import Inputs, row_chunks
from whvi.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from whvi.likelihoods.gaussian import MIN_NOISE_VARIANCE
from whvi.linearized.covariance import Covariance, RootCovariance, RowCovariance
from whvi.linearized.curvature import curvature_root
from whvi.linearized.jacobians import jacobian
from whvi.linearized.parameters import ParameterSpace, parameter_space
from whvi.linearized.plan import FORMS, Plan
from whvi.linearized.rows import checked, pairs_of
from whvi.linearized.statistics import stream
from whvi.predictive import Predictive

_KEPT = ("precision", "noise", "shift", "log_evidence")  # tensors of a state in every form
_BLOCK_BYTES = 1 << 25  # of Jacobians that are held at a time


class FunctionMoments(NamedTuple):
    """Mean ``(*batch_shape, N, O)`` and covariance ``(*batch_shape, N, O, O)`` of ``f`` per row."""

    mean: Tensor
    covariance: Tensor

    @property
    def variance(self) -> Tensor:
        """Marginal variances, ``(*batch_shape, N, O)``."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)


@final
class LinearizedPosterior:
    """A Gaussian posterior over the parameters of a model; made by :func:`whvi.linearize`.

    Args:
        model, likelihood: At ``θ*``; both are used as they are, not copied.
        space: Which parameters are random.
        covariance: ``Σ``.
        shift: ``δ̄``, ``(*batch_shape, P)``.
        precision: ``λ`` of every tensor, ``(*batch_shape, K)``.
        noise: ``τ``, by which the noise variance of the likelihood is multiplied, ``batch_shape``.
        log_evidence: Of the rows, ``batch_shape``.
        form: ``"full"``, ``"low_rank"`` or ``"last_layer"``.
        description: What :meth:`describe` says.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        space: ParameterSpace,
        covariance: Covariance,
        *,
        shift: Tensor,
        precision: Tensor,
        noise: Tensor,
        log_evidence: Tensor,
        form: str,
        description: str,
    ) -> None:
        self.model, self.likelihood, self.space = model, likelihood, space
        self.covariance = covariance
        self.shift, self.precision, self.noise = shift, precision, noise
        self.log_evidence, self.form = log_evidence, form
        self._description = description

    @property
    def prior_precision(self) -> dict[str, Tensor]:
        """``λ`` by the name of its tensor, each of shape ``batch_shape``."""
        return dict(zip(self.space.names, self.precision.unbind(-1), strict=True))

    @property
    def fitted_likelihood(self) -> Likelihood:
        """The likelihood with its noise variance multiplied by ``τ``."""
        if not isinstance(self.likelihood, Gaussian) or bool((self.noise == 1).all()):
            return self.likelihood
        fitted = copy.deepcopy(self.likelihood).double()
        variance = fitted.log_noise_variance.detach().exp() + MIN_NOISE_VARIANCE
        scaled = (self.noise.unsqueeze(-1) * variance - MIN_NOISE_VARIANCE).clamp_min(1e-30)
        fitted.log_noise_variance = nn.Parameter(scaled.log())
        return fitted

    def describe(self) -> str:
        """Name the form, its size and why it was chosen."""
        return self._description

    def __repr__(self) -> str:
        return f"LinearizedPosterior({self.describe()})"

    # Functions -----------------------------------------------------------------------------

    def function_moments(self, x: Inputs) -> FunctionMoments:
        """Return mean and covariance of ``f(x)``, exact for the linearised model, in float64.

        Args:
            x: ``(N, ...)`` shared by the replicas, or ``(*batch_shape, N, ...)``.
        """
        parts = [self._moments(block) for block in self._blocks(x)]
        axis = len(self.space.batch_shape)
        return FunctionMoments(*(torch.cat(column, axis) for column in zip(*parts, strict=True)))

    def _moments(self, x: Inputs) -> FunctionMoments:
        f, J = jacobian(self.model, x, self.space)
        mean = f.double() + (J.double() @ self.shift[..., None, :, None]).squeeze(-1)
        return FunctionMoments(mean, self.covariance.of_outputs(J))

    def _blocks(self, x: Inputs) -> list[Inputs]:
        """Cut rows into blocks whose Jacobians take some tens of megabytes."""
        size = rows_per_block(self.space, self.likelihood.num_features)
        return row_chunks(x, self.space.batch_shape, size) or [x]

    def leverage(self, x: Inputs) -> Tensor:
        """Return ``tr(J Σ Jᵀ R) / τ``, ``(*batch_shape, N)``: how far a row is from the others.

        It is the variance of ``f`` over that of the noise. Over the rows of the fit it adds up to
        the effective number of parameters; a row beyond them can have any value.
        """
        mean, covariance = self.function_moments(x)
        root = curvature_root(self.likelihood, mean)
        inner = root.mT @ covariance @ root
        return inner.diagonal(dim1=-2, dim2=-1).sum(-1) / self.noise.unsqueeze(-1)

    def draw_displacements(
        self, num_draws: int, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ``θ − θ*``, shape ``(*batch_shape, S, P)``, in float64."""
        check_positive_int("num_draws", num_draws)
        return self.shift.unsqueeze(-2) + self.covariance.draw(num_draws, generator)

    def draw_functions(
        self, num_draws: int, *, generator: torch.Generator | None = None
    ) -> LinearizedFunctions:
        """Draw ``S`` functions; call the result with rows, as often as wanted."""
        return LinearizedFunctions(self, self.draw_displacements(num_draws, generator=generator))

    # Targets -------------------------------------------------------------------------------

    def predictive(
        self,
        x: Inputs,
        *,
        num_draws: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Predictive:
        """Return the distribution of targets at ``x``.

        Constant Gaussian noise gives one Gaussian per row and output, the exact marginal.
        Heteroscedastic noise does so with the noise at its mean. Other likelihoods, and these if
        ``num_draws`` is given, give a mixture over that many functions (64 if not given).
        """
        if num_draws is None and isinstance(self.likelihood, Gaussian | HeteroscedasticGaussian):
            return self._gaussian(x)
        f = self.draw_functions(64 if num_draws is None else num_draws, generator=generator)(x)
        return self.fitted_likelihood.predictive(f)

    def _gaussian(self, x: Inputs) -> Predictive:
        moments, likelihood = self.function_moments(x), self.fitted_likelihood
        num_outputs, axes = likelihood.num_outputs, len(self.space.batch_shape)
        mean, variance = (part[..., :num_outputs] for part in (moments.mean, moments.variance))
        if isinstance(likelihood, HeteroscedasticGaussian):
            noise = likelihood.noise_variance(moments.mean.unsqueeze(-3)).squeeze(-3).detach()
        else:
            assert isinstance(likelihood, Gaussian)
            constant = likelihood.log_noise_variance.detach().double().exp() + MIN_NOISE_VARIANCE
            noise = constant.unsqueeze(-2)
        scale = likelihood.target_scale.double().unsqueeze(-2)
        loc = mean * scale + likelihood.target_mean.double().unsqueeze(-2)
        parts = [loc, (variance + noise).sqrt() * scale, variance.sqrt() * scale]
        if num_outputs == 1:
            parts = [part.squeeze(-1) for part in parts]
        return Predictive.gaussian(*(part.unsqueeze(axes) for part in parts), batch_dims=axes)

    # More rows -----------------------------------------------------------------------------

    def update(self, x: Inputs, y: Tensor) -> LinearizedPosterior:
        """Return the posterior after further rows, at the same ``θ*``, ``λ`` and noise.

        For a model that is linear in its parameters it is that of all rows together.
        """
        size = rows_per_block(self.space, self.likelihood.num_features)
        keep = isinstance(self.covariance, RowCovariance)
        rows = checked(pairs_of([(x, y)]), self.likelihood, self.space.batch_shape)
        new = stream(self.model, self.likelihood, self.space, rows, block_rows=size, keep_rows=keep)
        covariance, log_det = self.covariance.conditioned(new, self.noise)
        noise, shift = self.noise, self.shift
        pulled = new.gram_times(shift)
        slope = (new.gradient - pulled) / noise.unsqueeze(-1)
        step = covariance.times(slope)
        log_prob = new.log_prob - 0.5 * (new.count * noise.log() + new.squares * (1 / noise - 1))
        linear = (new.gradient - 0.5 * pulled).mul(shift).sum(-1) / noise
        gain = log_prob + linear - 0.5 * log_det + 0.5 * (slope * step).sum(-1)
        return LinearizedPosterior(
            self.model,
            self.likelihood,
            self.space,
            covariance,
            shift=shift + step,
            precision=self.precision,
            noise=noise,
            log_evidence=self.log_evidence + gain,
            form=self.form,
            description=self._description,
        )

    # Files ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return tensors from which :meth:`from_state` makes the posterior again.

        A root is packed to its triangle, ``R · P (P + 1) / 2`` numbers in float32.
        """
        form = torch.tensor(FORMS.index(self.form), dtype=torch.uint8)
        state = {"form": form} | {name: getattr(self, name) for name in _KEPT}
        if isinstance(self.covariance, RowCovariance):
            rows, base = self.covariance.rows.float(), self.covariance.precision
            return state | {"rows": rows, "base": base}
        assert isinstance(self.covariance, RootCovariance)
        i, j = torch.tril_indices(*self.covariance.root.shape[-2:])
        return state | {"root": self.covariance.root[..., i, j].float()}

    @classmethod
    def from_state(
        cls, model: nn.Module, likelihood: Likelihood, state: Mapping[str, Tensor]
    ) -> LinearizedPosterior:
        """Make a posterior of a model with the parameters it was made with."""
        missing = [name for name in ("form", *_KEPT) if name not in state]
        if missing:
            raise ConfigError(f"the state of a linearised posterior has no {', '.join(missing)}")
        form = FORMS[int(state["form"])]
        space = parameter_space(model, last_layer=form == "last_layer")
        precision, noise = state["precision"].double(), state["noise"].double()
        shift = state["shift"].double()
        shapes = [(*space.batch_shape, n) for n in (space.num_parameters, len(space.names))]
        if [shift.shape, precision.shape] != shapes:
            *replicas, size = shift.shape
            raise ConfigError(
                f"the state is of {size} parameters in {precision.shape[-1]} tensors with "
                f"batch_shape {tuple(replicas)}, but the model has {space.num_parameters} in "
                f"{len(space.names)} with batch_shape {space.batch_shape}"
            )
        dtype, P = next(model.parameters()).dtype, space.num_parameters
        if form == "low_rank":
            rows = state["rows"].to(dtype)
            covariance: Covariance = RowCovariance(rows, state["base"].double(), noise)
        else:
            covariance = RootCovariance(_unpacked(state["root"], P).to(dtype))
        rank = state["rows"].shape[-2] if form == "low_rank" else None
        plan = Plan(form, P, rank, covariance.num_bytes, None, "from a saved state")
        return cls(
            model, likelihood, space, covariance, shift=shift, precision=precision, noise=noise,
            log_evidence=state["log_evidence"].double(), form=form, description=str(plan),
        )  # fmt: skip


@final
class LinearizedFunctions:
    """Draws of functions ``x ↦ f(x; θ*) + J(x) δ``, one per displacement ``δ``."""

    def __init__(self, posterior: LinearizedPosterior, displacements: Tensor) -> None:
        self.posterior, self.displacements = posterior, displacements

    def __call__(self, x: Inputs) -> Tensor:
        """Return the values, ``(*batch_shape, S, N, O)``, in float64."""
        p = self.posterior
        parts = [self._values(block) for block in p._blocks(x)]
        return torch.cat(parts, len(p.space.batch_shape) + 1)

    def _values(self, x: Inputs) -> Tensor:
        f, J = jacobian(self.posterior.model, x, self.posterior.space)
        change = self.displacements.to(J.dtype) @ J.flatten(-3, -2).mT  # (..., S, N·O)
        changes: Tensor = change.double().unflatten(-1, f.shape[-2:])
        return f.double().unsqueeze(-3) + changes


def rows_per_block(space: ParameterSpace, num_outputs: int, least: int = 1) -> int:
    """Return how many rows have Jacobians of some tens of megabytes, or ``least`` outputs."""
    replicas = math.prod(space.batch_shape)
    fit = _BLOCK_BYTES // (8 * replicas * num_outputs * space.num_parameters)
    return max(1, fit, -(-least // num_outputs))


def _unpacked(packed: Tensor, size: int) -> Tensor:
    """Return the lower triangular matrices whose triangles are given row by row."""
    i, j = torch.tril_indices(size, size)
    if packed.shape[-1] != len(i):
        raise ConfigError(
            f"a root of {size} parameters has {len(i)} numbers, got {packed.shape[-1]}"
        )
    root = packed.new_zeros(*packed.shape[:-1], size, size)
    root[..., i, j] = packed
    return root
