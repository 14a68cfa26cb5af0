r"""A perceptron by local reparameterization as one autograd node.

At the paper's sizes (width 128, batch 64) a training step spends more time between operations than
in them. A :class:`Chain` runs the layers of an ``nn.Sequential`` one after the other inside a
single node, and forms their KL there too, with the same kernels and the same noise as the layers.
"""

from __future__ import annotations

from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whvi._kernel.backend import kernel_takes
from whvi._kernel.blocks import prepared_call
from whvi._kernel.dense import KERNEL_OUTPUTS, local_backward, local_forward
from whvi._kernel.noise import normal_from_seed
from whvi._kernel.product import Operands, product_backward, product_forward
from whvi.layers.linear import MeanFieldLinear, RandomLinear, WHVILinear
from whvi.layers.sines import Sine, Tile
from whvi.layers.structured import StructuredWeight
from whvi.posteriors import DiagonalGaussian
from whvi.posteriors.diagonal import add_kl_gradients, kl_in_kernel
from whvi.priors import EmpiricalBayesPrior, FixedPrior
from whvi.sampling import LocalReparameterization

Kept = tuple[Any, ...]


@final
class _StructuredLink:
    """``WHVILinear`` with a diagonal posterior and a deterministic bias, or none."""

    def __init__(self, layer: WHVILinear) -> None:
        weight = cast(StructuredWeight, layer.weight)
        posterior = cast(DiagonalGaussian, weight.posterior)
        self._plan, self._batch_ndim = weight.plan, len(layer.batch_shape)
        bias = None if layer.bias is None else layer.bias.value
        # in the order of Operands after x
        self.parameters = [weight.s1, posterior.loc, weight.s2, posterior.log_scale, bias]
        self.random = (1, 3)  # where loc and log_scale stand among them
        self.prior = weight.prior

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        loc = cast(Tensor, self.parameters[1])
        call = prepared_call(x.shape, loc.shape, self._batch_ndim, self._plan, True)
        seed = sampler.next_seed()
        operands = Operands(x, *self.parameters)  # type: ignore[arg-type]  # bias may be None
        y, noise = product_forward(operands, call, seed, True)
        return y, (x, call, seed, noise)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> list[Tensor | None]:
        x, call, seed, noise = kept
        operands = Operands(x, *self.parameters)  # type: ignore[arg-type]  # bias may be None
        return product_backward(operands, call, seed, noise, grad, wants_x)


@final
class _DenseLink:
    """``MeanFieldLinear``."""

    def __init__(self, layer: MeanFieldLinear) -> None:
        posterior = cast(DiagonalGaussian, layer.weight.posterior)
        self._loc, self._log_scale = posterior.loc, posterior.log_scale
        self._bias = None if layer.bias is None else layer.bias.value
        self.parameters = [self._loc, self._log_scale, self._bias]
        self.random = (0, 1)
        self.prior = layer.weight.prior
        self._out_features = layer.out_features
        self._in_kernel = layer.out_features <= KERNEL_OUTPUTS

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        shape = (*x.shape[:-1], self._out_features)
        noise = normal_from_seed(shape, sampler.next_seed(), dtype=x.dtype)
        given = (self._loc, self._log_scale, self._bias)
        return local_forward(x, *given, noise, in_kernel=self._in_kernel)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> list[Tensor | None]:
        return list(local_backward(kept, grad, wants_x, in_kernel=self._in_kernel))


@final
class _ReluLink:
    """``max(x, 0)``, written over the output of the layer before it."""

    parameters: tuple[()] = ()

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        return x.clamp_min_(0), (x,)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> list[Tensor | None]:
        """Mask ``grad``, writing over it: it came from the link behind, nobody else has it."""
        return [torch.ops.aten.threshold_backward(grad, kept[0], 0, grad_input=grad)]


@final
class _SineLink:
    """:class:`Sine`, whose derivative is written over the gradient."""

    parameters: tuple[()] = ()

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Kept]:
        return torch.sin(x).mul_(Sine.SCALE), (x,)

    def backward(self, kept: Kept, grad: Tensor, wants_x: bool) -> list[Tensor | None]:
        return [grad.mul_(torch.cos(kept[0])).mul_(Sine.SCALE)]


_Layer = _StructuredLink | _DenseLink
_Activation = _ReluLink | _SineLink
Link = _Layer | _Activation


@final
class Chain:
    """The layers of a model, ready to run as one node; see :meth:`of`."""

    def __init__(self, links: list[Link], first: RandomLinear, tile: nn.Module | None) -> None:
        self.links = links
        self.first, self.tile = first, tile
        self.parameters = [p for link in links for p in link.parameters]
        self.layers = [link for link in links if isinstance(link, _Layer)]
        self.priors = [layer.prior for layer in self.layers]
        self.locs = [cast(Tensor, layer.parameters[layer.random[0]]) for layer in self.layers]
        self.log_scales = [cast(Tensor, layer.parameters[layer.random[1]]) for layer in self.layers]

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """Return the chain of a plain ``nn.Sequential`` that the kernel can run, else ``None``."""
        if type(model) is not nn.Sequential or not len(model) or _has_hooks(model):
            return None
        modules = list(model)
        tile = modules.pop(0) if isinstance(modules[0], Tile) else None
        links = [_link(module) for module in modules]
        if not links or not all(links) or not isinstance(modules[0], RandomLinear):
            return None
        if isinstance(links[-1], _Activation):  # it would write over the gradient of the output
            return None
        chain = cls(cast(list[Link], links), modules[0], tile)
        dtype = chain.first.weight.posterior.loc.dtype
        given = [p for p in chain.parameters if p is not None]
        usable = all(kernel_takes(p) and p.dtype is dtype and p.is_contiguous() for p in given)
        return chain if usable else None

    def forward(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Tensor, Kept]:
        """Return what the model gives for ``x``, its KL, and what :meth:`backward` needs.

        To be called without autograd; ``x`` is ``(*batch_shape, *inner, in)``.
        """
        if self.tile is not None:
            x = self.tile(x)
        self.first._check(x)
        return self._run(x, sampler)

    def backward(self, kept: Kept, grad: Tensor, grad_kl: Tensor) -> list[Tensor | None]:
        """Return the gradients of ``parameters``, given those of the output and of the KL."""
        return self._run_back(kept, grad, grad_kl, False)[1:]

    def _run(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Tensor, Kept]:
        links: list[Kept] = []
        for link in self.links:
            x, kept = link.forward(x, sampler)
            links.append(kept)
        kl, variances = kl_in_kernel(self.priors, self.locs, self.log_scales)
        return x, kl, (links, variances)

    def _run_back(
        self, kept: Kept, grad: Tensor, grad_kl: Tensor, wants_x: bool
    ) -> list[Tensor | None]:
        """Return the gradients of the input, if wanted, and of the parameters."""
        links, variances = kept
        gradients: list[Tensor | None] = []
        into: list[tuple[Tensor, Tensor]] = []
        for i in range(len(self.links) - 1, -1, -1):
            link = self.links[i]
            to_x, *to_parameters = link.backward(links[i], grad, i > 0 or wants_x)
            gradients = to_parameters + gradients
            if isinstance(link, _Layer):
                loc, log_scale = link.random
                into.insert(0, cast(Any, (to_parameters[loc], to_parameters[log_scale])))
            grad = cast(Tensor, to_x)
        add_kl_gradients(grad_kl, self.locs, self.log_scales, variances, into)
        return [grad, *gradients]

    def __call__(self, x: Tensor, sampler: LocalReparameterization) -> tuple[Tensor, Tensor]:
        """Return what the model would give for ``x (*batch_shape, *inner, in)``, and its KL."""
        if self.tile is not None:
            x = self.tile(x)
        self.first._check(x)
        # apply() is not annotated in torch.
        values = _ChainFunction.apply(self, sampler, x, *self.parameters)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, Tensor], values)


def _has_hooks(model: nn.Module) -> bool:
    return any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        for module in model.modules()
    )


def _link(module: nn.Module) -> Link | None:
    if type(module) is nn.ReLU:
        return _ReluLink()
    if type(module) is Sine:
        return _SineLink()
    if not isinstance(module, RandomLinear):
        return None
    if module.bias is not None and module.bias.value is None:
        return None
    if not isinstance(module.weight.posterior, DiagonalGaussian):
        return None
    if not isinstance(module.weight.prior, EmpiricalBayesPrior | FixedPrior):
        return None
    if isinstance(module, WHVILinear):
        column = cast(StructuredWeight, module.weight).plan.is_column
        return None if column else _StructuredLink(module)
    return _DenseLink(module) if isinstance(module, MeanFieldLinear) else None


class _ChainFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, chain: Chain, sampler: LocalReparameterization, x: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.chain = chain
        x, kl, ctx.kept = chain._run(x, sampler)
        return x, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_kl: Tensor) -> tuple[Any, ...]:
        wants_x = ctx.needs_input_grad[2]
        return (None, None, *ctx.chain._run_back(ctx.kept, grad, grad_kl, wants_x))
