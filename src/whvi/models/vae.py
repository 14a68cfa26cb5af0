r"""Variational autoencoders whose encoder and decoder have posteriors over their weights.

.. math::
   \log p(X) \ge \sum_i \mathbb{E}\left[\log p(x_i \mid z_i, \theta)
      - \mathrm{KL}(q(z_i \mid x_i, \phi) \,\|\, p(z))\right]
      - \mathrm{KL}(q(\theta) \,\|\, p(\theta)) - \mathrm{KL}(q(\phi) \,\|\, p(\phi))

``z ~ N(0, I)`` are the latents, ``θ`` the weights of the decoder and ``φ`` those of the encoder,
all random: ``φ`` are auxiliary variables of the model, so the bound holds with their KL subtracted.
With ``K`` latents per image (Burda et al., 2016) the sum over ``i`` is over

.. math:: \log \frac1K \sum_k w_{ik}, \qquad
   w_{ik} = p(x_i \mid z_{ik}, \theta) \, p(z_{ik}) / q(z_{ik} \mid x_i, \phi).

The function values of such a model are the ``log w``, and its likelihood is the log of their mean:
``whvi.fit(model, model.bound(), (x, x), config=...)`` maximises exactly this bound.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from whvi._checks import check_dtype, check_last_dim, check_positive_int
from whvi._files import atomic_write, conform, seal, unseal
from whvi.errors import ConfigError, ModelFileError, ShapeError
from whvi.layers.protocol import bayesian_layers, kl
from whvi.likelihoods import Likelihood
from whvi.models.networks import Builder, VaeConfig, decoder_network, encoder_network
from whvi.models.pixels import make_pixels
from whvi.posteriors import DiagonalGaussian
from whvi.posteriors.base import standard_normal
from whvi.predictive import Predictive
from whvi.sampling import LocalReparameterization, WeightDraws, current_sampler, sampling

_FORMAT, _VERSION = "whvi vae", 1
_CONFIG = {
    **{name: [int] for name in ("image_shape", "hidden", "channels", "block_sizes")},
    **dict.fromkeys(("num_latents", "num_levels", "num_importance"), int),
    **dict.fromkeys(("layer", "decoder"), str),
    "start_scale": float,
}
Outputs = Callable[[Tensor], Tensor]  # of a decoder, for latents
_ROWS, _LATENTS = 100, 50  # that log_likelihood decodes at once


class Latents(NamedTuple):
    """``q(z | x) = N(mean, diag(scale²))``, each ``(..., N, num_latents)``."""

    mean: Tensor
    scale: Tensor

    def kl(self) -> Tensor:
        """Return the KL to ``N(0, I)`` in nats, ``(..., N)``."""
        log_ratio = self.scale.square() + self.mean.square() - 1 - 2 * self.scale.log()
        return 0.5 * log_ratio.sum(-1)


class VaeTerms(NamedTuple):
    """The terms of the ELBO: two per image, and two for the model as a whole, all in nats."""

    reconstruction: Tensor  # log p(x | z), (N,)
    latent_kl: Tensor  # (N,)
    decoder_kl: Tensor  # of the weights; counted once, not per image
    encoder_kl: Tensor

    def elbo(self, num_data: int) -> Tensor:
        """Return the ELBO of ``num_data`` images, of which these are a random part."""
        per_image = (self.reconstruction - self.latent_kl).mean()
        return num_data * per_image - self.decoder_kl - self.encoder_kl


@final
class Bound(Likelihood):
    """``log 1/K Σ_k w_k`` of the log weights that a :class:`Vae` returns, for :func:`whvi.fit`.

    The images are in the weights already; as targets they are checked and not used again.
    """

    def __init__(self, model: Vae) -> None:
        super().__init__(math.prod(model.config.image_shape), ())
        self._num_importance, self._check = model.config.num_importance, model.check_images

    @property
    def num_features(self) -> int:
        """``K``."""
        return self._num_importance

    def log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        """Return the log of the mean weight, ``(S, N)``."""
        self._check_values(f)
        return f.logsumexp(-1) - math.log(self._num_importance)

    def predictive(self, f: Tensor) -> Predictive:
        """Refuse: log weights say nothing about other images."""
        raise ConfigError("a bound has no predictive distribution; use Vae.sample or .reconstruct")

    def check_targets(self, y: Tensor) -> None:
        """Raise unless ``y`` are images of the model."""
        self._check(y)


@final
class Vae(nn.Module):
    """A variational autoencoder; :func:`vae` makes one and describes the options.

    Weights are drawn as :func:`whvi.sampling.current_sampler` says: one draw per call unless a
    :func:`whvi.sampling.sampling` block says otherwise. Images are ``(..., *image_shape)``.
    """

    def __init__(self, config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        self.pixels = make_pixels(config.decoder, config.num_levels)
        to_latents, to_image = (Builder(config.layer, size) for size in config.block_sizes)
        shape = config.image_shape
        widths = (*config.hidden, 2 * config.num_latents)
        self.encoder = encoder_network(to_latents, shape, config.channels, widths)
        widths = (config.num_latents, *config.hidden[::-1])
        outputs = (shape[0] * self.pixels.per_pixel, *shape[1:])
        self.decoder = decoder_network(to_image, widths, config.channels[::-1], outputs)
        for module in self.modules():
            if isinstance(module, DiagonalGaussian):
                module.log_scale.data += math.log(config.start_scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log importance weights of images, ``(..., N, K)``.

        With ``K = 1`` it is ``log p(x | z) − KL(q(z | x) ‖ p(z))``, of the same mean and a smaller
        variance. With more, all latents of a call share one draw of the decoder's weights.
        """
        num = self.config.num_importance
        with sampling(current_sampler()) as sampler:
            if num == 1:
                reconstruction, latent_kl = self._reconstruction_and_kl(x)
                return (reconstruction - latent_kl).unsqueeze(-1)
            latents = self.encode(x)
            shared = WeightDraws(None, sampler.generator)
            with sampling(shared if isinstance(sampler, LocalReparameterization) else sampler):
                return self._log_weights(x, latents, num, self._outputs).movedim(-2, -1)

    def _reconstruction_and_kl(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log p(x | z)`` for one latent per image and the KL of the latents."""
        latents = self.encode(x)
        z = latents.mean + latents.scale * _noise(latents.mean.shape, latents.mean)
        return self.pixels.log_prob(self._outputs(z), self._flat(x)), latents.kl()

    def _log_weights(self, x: Tensor, latents: Latents, num: int, outputs: Outputs) -> Tensor:
        """Draw ``num`` latents per image and return their ``log w``, ``(..., num, N)``."""
        mean, scale = (v.unsqueeze(-3) for v in latents)
        noise = _noise((*mean.shape[:-3], num, *mean.shape[-2:]), mean)
        z = mean + scale * noise
        # log p(z) − log q(z | x); the constants of both densities cancel
        log_ratio = (scale.log() + 0.5 * (noise.square() - z.square())).sum(-1)
        return self.pixels.log_prob(outputs(z), self._flat(x).unsqueeze(-3)) + log_ratio

    def bound(self) -> Bound:
        """Return the likelihood with which :func:`whvi.fit` trains this model."""
        return Bound(self)

    def terms(self, x: Tensor) -> VaeTerms:
        """Estimate the terms of the ELBO for images ``(N, *image_shape)``, one latent each."""
        self.check_images(x)
        with sampling(current_sampler()):
            per_image = self._reconstruction_and_kl(x)
            return VaeTerms(*per_image, kl(self.decoder), kl(self.encoder))

    # What a trained model is for ------------------------------------------------------------------

    def encode(self, x: Tensor) -> Latents:
        """Return ``q(z | x)`` of images ``(..., N, *image_shape)``."""
        self._check_shape(x)
        rows = self._flat(x)
        if self.config.channels:
            rows = rows.reshape(-1, *self.config.image_shape)
        mean, log_scale = self.encoder(rows).chunk(2, dim=-1)
        lead = x.shape[: x.dim() - len(self.config.image_shape)]
        return Latents(mean.reshape(*lead, -1), log_scale.reshape(*lead, -1).exp())

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean images of latents ``(..., num_latents)``."""
        check_last_dim("latents", z, self.config.num_latents)
        images = self.pixels.mean(self._outputs(z))
        return images.reshape(*z.shape[:-1], *self.config.image_shape)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """Return the mean images at the mean latents of images."""
        self.check_images(x)
        with sampling(current_sampler()):
            return self.decode(self.encode(x).mean)

    @torch.no_grad()
    def sample(self, num_images: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw images ``(num_images, *image_shape)`` from the model, with one draw of weights."""
        check_positive_int("num_images", num_images)
        like = next(self.parameters())
        with sampling(WeightDraws(None, generator)):
            f = self._outputs(_noise((num_images, self.config.num_latents), like))
        images = self.pixels.sample(f, generator)
        return images.reshape(num_images, *self.config.image_shape)

    def log_likelihood(
        self,
        x: Tensor,
        *,
        num_importance: int = 5000,
        num_weights: int = 10,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Estimate ``log p(x)`` of images by importance sampling, ``(N,)`` in nats.

        The log of the mean of ``w`` over ``num_weights`` draws of all weights times
        ``num_importance / num_weights`` latents each; a lower bound on average, which rises with
        ``num_importance``. Without random weights there is one set of them. Memory does not grow
        with either number.
        """
        check_positive_int("num_importance", num_importance)
        check_positive_int("num_weights", num_weights)
        num_weights = min(num_weights, num_importance) if bayesian_layers(self) else 1
        if num_importance % num_weights:
            raise ConfigError(
                f"num_importance must be a multiple of num_weights = {num_weights}, "
                f"got {num_importance}"
            )
        draws = self.log_likelihood_draws(
            x, num_weights=num_weights, num_latents=num_importance // num_weights,
            generator=generator,
        )  # fmt: skip
        return draws.logsumexp(0) - math.log(num_weights)

    @torch.no_grad()
    def log_likelihood_draws(
        self,
        x: Tensor,
        *,
        num_weights: int,
        num_latents: int,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Estimate ``log p(x | W_s)`` for draws ``W_s`` of all weights, ``(num_weights, N)``.

        Each is the log of the mean of ``w`` over ``num_latents`` latents.
        """
        self.check_images(x)
        check_positive_int("num_latents", num_latents)
        draws = []
        for _ in range(num_weights):
            with sampling(WeightDraws(None, generator)):
                outputs = self._drawn_decoder()
                parts = [
                    self._log_mean_weight(part, num_latents, outputs) for part in x.split(_ROWS)
                ]
            draws.append(torch.cat(parts))
        return torch.stack(draws)

    def _log_mean_weight(self, x: Tensor, num_latents: int, outputs: Outputs) -> Tensor:
        """Return ``log 1/K Σ_k w_k`` for some images, a few latents at a time."""
        latents, parts = self.encode(x), []
        for start in range(0, num_latents, _LATENTS):
            num = min(_LATENTS, num_latents - start)
            parts.append(self._log_weights(x, latents, num, outputs).logsumexp(0))
        return torch.stack(parts).logsumexp(0) - math.log(num_latents)

    # Files ----------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights and configuration to a sealed safetensors file (:mod:`whvi._files`)."""
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "config": dataclasses.asdict(self.config),
        }
        with atomic_write(path) as stream:
            stream.write(seal(self.state_dict(), document))

    # Shapes ---------------------------------------------------------------------------------------

    def _flat(self, x: Tensor) -> Tensor:
        return x.flatten(-len(self.config.image_shape))

    def _outputs(self, z: Tensor) -> Tensor:
        """Return the decoder's outputs ``(..., pixels · per_pixel)``."""
        if not self.config.channels:
            flat: Tensor = self.decoder(z)
            return flat
        maps: Tensor = self.decoder(z.reshape(-1, z.shape[-1]))
        by_level = maps.unflatten(1, (-1, self.pixels.per_pixel)).movedim(2, -1)
        outputs: Tensor = by_level.reshape(*z.shape[:-1], -1)
        return outputs

    def _drawn_decoder(self) -> Outputs:
        """Return :meth:`_outputs` with the dense matrices of the active draw of the weights.

        Of millions of latents, they are soon cheaper than the structured product.
        """
        if self.config.channels:
            return self._outputs
        layers: list[Any] = list(self.decoder)[::2]
        *hidden, last = [(layer.weight.clone(), layer.bias) for layer in layers]

        def outputs(z: Tensor) -> Tensor:
            for weight, bias in hidden:
                z = functional.linear(z, weight, bias).relu_()
            return functional.linear(z, *last)

        return outputs

    def _check_shape(self, x: Tensor) -> None:
        shape, axes = self.config.image_shape, len(self.config.image_shape)
        if x.dim() <= axes or tuple(x.shape[-axes:]) != shape:
            expected = ", ".join(["N", *map(str, shape)])
            raise ShapeError(f"images must have shape ({expected}), got {tuple(x.shape)}")
        check_dtype("images", x, next(self.parameters()))

    def check_images(self, x: Tensor) -> None:
        """Refuse images of another shape or data type, or with pixels outside the range."""
        self._check_shape(x)
        self.pixels.check(x)


def _noise(shape: Sequence[int], like: Tensor) -> Tensor:
    """Draw standard normals from the source of the active sampler."""
    sampler = current_sampler()
    if isinstance(sampler, LocalReparameterization):
        return sampler.noise(tuple(shape), like)
    return standard_normal(like, shape, sampler.generator)


def vae(
    image_shape: Sequence[int],
    hidden: Sequence[int] = (512, 512),
    num_latents: int = 50,
    *,
    layer: str = "whvi",
    decoder: str = "bernoulli",
    num_levels: int = 256,
    channels: Sequence[int] = (),
    block_sizes: Sequence[int] = (64, 32),
    num_importance: int = 1,
    start_scale: float = 0.1,
) -> Vae:
    """Build a variational autoencoder; the start is drawn from torch's default generator.

    Args:
        image_shape: Of one image, such as ``(784,)`` or ``(1, 28, 28)``.
        hidden: Widths of the encoder's hidden layers; the decoder has them in reverse.
        num_latents: Size of ``z``.
        layer: ``"whvi"``, ``"mean_field"`` or ``"dense"`` (``nn.Linear``: no posterior, KL 0).
        decoder: Of pixels: ``"bernoulli"`` (0 or 1), ``"categorical"`` (levels from 0 to 1) or
            ``"gaussian"`` (any values, one noise).
        num_levels: Of the categorical decoder.
        channels: Of 3 × 3 convolutions around the hidden layers, each halving the size; none by
            default. The decoder doubles the size before each of its own.
        block_sizes: Of structured layers in encoder and decoder; smaller blocks are more
            parameters.
        num_importance: ``K``, latents per image of the training bound.
        start_scale: Factor on the standard deviations with which layers start: deep in a network
            their noise adds up, and one that drowns the signal is slow to leave.

    Returns:
        A model for ``whvi.fit(model, model.bound(), (x, x), config=...)``.
    """
    return Vae(
        VaeConfig(
            image_shape=image_shape, hidden=hidden, num_latents=num_latents, layer=layer,
            decoder=decoder, num_levels=num_levels, channels=channels, block_sizes=block_sizes,
            num_importance=num_importance, start_scale=start_scale,
        )
    )  # fmt: skip


def load_vae(path: str | os.PathLike[str]) -> Vae:
    """Read a model that :meth:`Vae.save` wrote.

    Raises:
        ModelFileError: The file is damaged or holds something else.
    """
    tensors, document = unseal(Path(path).read_bytes())
    conform(document, {"format": str, "version": int, "config": _CONFIG}, str(path))
    if (document["format"], document["version"]) != (_FORMAT, _VERSION):
        raise ModelFileError(f"{path}: expected {_FORMAT} {_VERSION}, found {document['format']}")
    try:
        model = Vae(VaeConfig(**document["config"]))
        model.to(next(iter(tensors.values())).dtype).load_state_dict(tensors)
    except (ConfigError, RuntimeError, StopIteration) as error:
        raise ModelFileError(f"{path}: {error}") from error
    return model
