r"""From gradients to a step: checks for finite values, clipping per replica, Adam.

Adam (Kingma and Ba, 2015), with the gradient ``g_t`` of step ``t``:

    m_t = β₁ m_{t−1} + (1 − β₁) g_t,   v_t = β₂ v_{t−1} + (1 − β₂) g_t²
    θ_t = θ_{t−1} − lr · m_t / (1 − β₁ᵗ) / (√(v_t / (1 − β₂ᵗ)) + ε)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, final

import torch
from torch import Tensor, nn

from whvi.elbo import Elbo
from whvi.errors import NumericalError

_ADVICE = "lower the learning rate or check the scale of the data"
_ADAM: dict[str, Any] = {
    "amsgrad": False, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8,
    "maximize": False, "grad_scale": None, "found_inf": None,
}  # fmt: skip


@final
class Adam:
    """``torch.optim.Adam(fused=True)`` with its defaults, bitwise, in a fifth of the time.

    The kernel is that of torch (private, but as old as ``fused=True``) and takes 8 µs for a small
    network; what :class:`torch.optim.Adam` does around it takes 100.

    Args:
        parameters: What to train, by name.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._names = list(parameters)
        self._parameters: list[Tensor] = list(parameters.values())
        self._counts = [0] * len(parameters)  # t of each: steps with a gradient
        self._firsts = [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
        self._seconds = [torch.zeros_like(p, requires_grad=False) for p in self._parameters]
        self._alike: dict[Any, list[int]] = defaultdict(list)  # what one call may take
        for i, parameter in enumerate(self._parameters):
            self._alike[parameter.device, parameter.dtype].append(i)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """Move the parameters; one whose gradient is ``None`` stays, and so do its moments."""
        for (device, _), alike in self._alike.items():
            moved = [i for i in alike if gradients[i] is not None]
            for i in moved:
                self._counts[i] += 1
            counts = {self._counts[i] for i in moved}
            scalars = {count: torch.tensor(float(count), device=device) for count in counts}
            lists: Any = (
                [self._parameters[i] for i in moved],
                [gradients[i] for i in moved],
                [self._firsts[i] for i in moved],
                [self._seconds[i] for i in moved],
                [],
                [scalars[self._counts[i]] for i in moved],
            )
            if moved:
                torch._fused_adam_(*lists, lr=learning_rate, **_ADAM)

    def tensors(self) -> dict[str, Tensor]:
        """Return ``<parameter>/step``, ``/exp_avg`` and ``/exp_avg_sq``; nothing at ``t = 0``."""
        found = {}
        for i, name in enumerate(self._names):
            if self._counts[i]:
                found[f"{name}/step"] = torch.tensor(float(self._counts[i]))
                found[f"{name}/exp_avg"] = self._firsts[i]
                found[f"{name}/exp_avg_sq"] = self._seconds[i]
        return found

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what :meth:`tensors` gave."""
        for i, name in enumerate(self._names):
            if f"{name}/step" in tensors:
                self._counts[i] = int(tensors[f"{name}/step"].item())
                self._firsts[i].copy_(tensors[f"{name}/exp_avg"])
                self._seconds[i].copy_(tensors[f"{name}/exp_avg_sq"])

    def second_moments(self) -> Iterable[tuple[str, Tensor]]:
        """Return ``v`` by parameter."""
        return zip(self._names, self._seconds, strict=True)


def all_finite(tensors: list[Tensor]) -> bool:
    """Return whether no tensor holds NaN or infinity; all are on one device.

    Private to torch but the engine of ``torch.amp.GradScaler``: one fused pass of ~10 µs where
    public calls take 40. It multiplies by 1, which changes no bit.
    """
    device = tensors[0].device
    found, one = torch.zeros((), device=device), torch.ones((), device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, one)
    return found.item() == 0


def blame_objective(result: Elbo, step: int) -> None:
    """Raise :class:`NumericalError` if a term of the objective is not finite, naming it."""
    for name in ("expected_log_lik", "kl"):
        bad = (~getattr(result, name).isfinite()).nonzero().tolist()
        if bad:
            where = f" (replica {tuple(bad[0])})" if bad[0] else ""
            value = getattr(result, name)[tuple(bad[0])].item()
            raise NumericalError(f"{name}{where} became {value} in step {step}; {_ADVICE}")


def check_finite_tensors(what: str, tensors: Iterable[tuple[str, Tensor]], step: int) -> None:
    """Raise :class:`NumericalError` for the first floating tensor that is not finite."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NumericalError(f"{what} of {name} is not finite in step {step}; {_ADVICE}")


def blame_overflow(gradients: Iterable[tuple[str, Tensor]], step: int) -> NoReturn:
    """Raise :class:`NumericalError` for the largest gradient: its square overflows."""
    sizes = {name: gradient.abs().max().item() for name, gradient in gradients}
    name = max(sizes, key=sizes.__getitem__)
    raise NumericalError(
        f"the gradient of {name} reaches {sizes[name]:.3g} in step {step} and its square "
        "overflows; check the scale of the data"
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


def per_replica(values: Tensor, like: Tensor) -> Tensor:
    """View ``values (*batch_shape)`` so that it broadcasts against ``like (*batch_shape, ...)``."""
    return values.reshape(values.shape + (1,) * (like.dim() - values.dim()))
