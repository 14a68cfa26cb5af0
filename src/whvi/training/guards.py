"""Guards of a running fit: finite numbers, gradient norms per replica, the last good weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from whvi.elbo import Elbo
from whvi.errors import NumericalError


@final
class FiniteCheck:
    """Tell in one cheap call per step whether all gradients are finite."""

    def __init__(self, device: torch.device) -> None:
        self._found = torch.zeros((), device=device)
        self._one = torch.ones((), device=device)

    def all_finite(self, tensors: list[Tensor]) -> bool:
        """Return whether no tensor holds NaN or infinity.

        Private to torch but the engine of ``torch.amp.GradScaler``: one fused pass of ~10 µs
        where public calls take 40. It multiplies by 1, which changes no bit.
        """
        self._found.zero_()
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, self._found, self._one)
        return self._found.item() == 0


def blame_objective(result: Elbo, step: int) -> None:
    """Raise :class:`NumericalError` if a term of the objective is not finite, naming it."""
    for name in ("expected_log_lik", "kl"):
        bad = (~getattr(result, name).isfinite()).nonzero().tolist()
        if bad:
            where = f" (replica {tuple(bad[0])})" if bad[0] else ""
            value = getattr(result, name)[tuple(bad[0])].item()
            raise NumericalError(
                f"{name}{where} became {value} in step {step}; lower the learning rate or check "
                "the scale of the data"
            )


def blame_gradient(parameters: Mapping[str, nn.Parameter], step: int) -> None:
    """Raise :class:`NumericalError` for the first gradient that is not finite, naming it."""
    for name, parameter in parameters.items():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            raise NumericalError(
                f"the gradient of {name} is not finite in step {step}; lower the learning rate "
                "or check the scale of the data"
            )


def check_finite_tensors(what: str, tensors: Iterable[tuple[str, Tensor]], step: int) -> None:
    """Raise :class:`NumericalError` for the first floating tensor that is not finite."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NumericalError(
                f"{what} of {name} is not finite after step {step}; lower the learning rate or "
                "check the scale of the data"
            )


def replica_norms(gradients: Sequence[Tensor], batch_shape: tuple[int, ...]) -> Tensor:
    """Return the norm of each replica's gradient over all parameters, shape ``batch_shape``."""
    squares = [g.reshape(*batch_shape, -1).square().sum(-1) for g in gradients]
    return torch.stack(squares).sum(0).sqrt()


def clip_per_replica(gradients: Sequence[Tensor], norms: Tensor, max_norm: float) -> None:
    """Scale in place ``g_r ← g_r · min(1, max_norm / ‖g_r‖)``: no replica touches another."""
    factor = (max_norm / norms).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(per_replica(factor, gradient))


def blame_overflow(parameters: Mapping[str, nn.Parameter], step: int) -> NoReturn:
    """Raise :class:`NumericalError` for the largest gradient: its square overflows."""
    sizes = {n: p.grad.abs().max().item() for n, p in parameters.items() if p.grad is not None}
    name = max(sizes, key=sizes.__getitem__)
    raise NumericalError(
        f"the gradient of {name} reaches {sizes[name]:.3g} in step {step} and its square "
        "overflows; check the scale of the data"
    )


def per_replica(values: Tensor, like: Tensor) -> Tensor:
    """View ``values (*batch_shape)`` so that it broadcasts against ``like (*batch_shape, ...)``."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))


@final
class LastGood:
    """A copy of the last tensors with which objective and gradients were seen to be finite."""

    def __init__(self, tensors: Sequence[Tensor], step: int) -> None:
        self._tensors = list(tensors)
        self._copies = [tensor.detach().clone() for tensor in tensors]
        self.step = step

    @torch.no_grad()
    def remember(self, step: int) -> None:
        """Copy the tensors as they are now, after ``step`` steps."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            copy.copy_(tensor)
        self.step = step

    @torch.no_grad()
    def restore(self) -> None:
        """Write the copies back."""
        for copy, tensor in zip(self._copies, self._tensors, strict=True):
            tensor.copy_(copy)
