"""Autoencoders: a linear Gaussian one has a closed form, which bounds and estimates must meet.

``x = W z + b + σ ε`` has ``p(x) = N(b, W Wᵀ + σ² I)``. With orthogonal columns in ``W`` the
posterior of ``z`` has a diagonal covariance, so that an encoder can be exact: then every importance
weight is ``p(x)`` itself.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import whvi
from tests.conformance.layer_suite import DTYPE, normal, seeded
from whvi import FitConfig, LocalReparameterization, WeightDraws, sampling
from whvi.errors import ConfigError, DataError, ModelFileError, ShapeError
from whvi.models import Vae, load_vae, vae
from whvi.sampling import current_sampler

PIXELS, LATENTS, NUM_DATA = 6, 3, 40
KINDS = ("whvi", "mean_field", "dense")


@torch.no_grad()
def linear_gaussian(encoder_error: float = 0.0) -> tuple[Vae, Tensor, Tensor]:
    """Return a model, images and their exact ``log p(x)``."""
    model = vae((PIXELS,), (), LATENTS, layer="dense", decoder="gaussian").to(DTYPE)
    lengths = torch.tensor([2.0, 1.0, 0.5], dtype=DTYPE)
    w = torch.linalg.qr(normal(PIXELS, LATENTS))[0] * lengths
    b, sigma = normal(PIXELS, seed=1), 0.6
    decoder, encoder = model.decoder[0], model.encoder[0]
    decoder.weight.copy_(w)
    decoder.bias.copy_(b)
    model.pixels.log_scale.fill_(math.log(sigma))
    precision = 1 + lengths.square() / sigma**2
    mean_map = w.T / sigma**2 / precision.unsqueeze(-1)
    encoder.weight.copy_(torch.cat([mean_map, torch.zeros_like(mean_map)]))
    encoder.bias.copy_(torch.cat([-mean_map @ b, -0.5 * precision.log()]))
    encoder.bias += encoder_error * normal(2 * LATENTS, seed=2)
    covariance = w @ w.T + sigma**2 * torch.eye(PIXELS, dtype=DTYPE)
    x = normal(NUM_DATA, PIXELS, seed=3) @ torch.linalg.cholesky(covariance).T + b
    exact = torch.distributions.MultivariateNormal(b, covariance).log_prob(x)
    return model, x, exact


def binary(*shape: int) -> Tensor:
    return (normal(*shape) > 0).to(DTYPE)


def small(layer: str = "whvi", **options: object) -> Vae:
    given = {"hidden": (8,), "num_latents": 2, "block_sizes": (4, 4), **options}
    torch.manual_seed(0)
    return vae((PIXELS,), layer=layer, **given).to(DTYPE)


@pytest.mark.parametrize("num_importance", [1, 7, 60, 500])
def test_an_exact_encoder_gives_the_exact_likelihood(num_importance: int) -> None:
    model, x, exact = linear_gaussian()
    estimate = model.log_likelihood(x, num_importance=num_importance, generator=seeded())
    assert_close(estimate, exact, rtol=0, atol=1e-10)


def test_the_estimate_approaches_the_likelihood_from_below() -> None:
    model, x, exact = linear_gaussian(encoder_error=0.4)
    many, gaps = x.repeat(10, 1), {}
    for k in (1, 5, 50, 5000):
        found = model.log_likelihood(many, num_importance=k, generator=seeded())
        gaps[k] = exact.repeat(10) - found
    assert gaps[1].mean() > 3 * gaps[5].mean() > 6 * gaps[50].mean()
    assert gaps[1].mean() > 0.3
    assert gaps[5000].mean().abs() < 4 * gaps[5000].std() / math.sqrt(len(many))


def test_the_training_bound_rises_with_the_latents_and_stays_below() -> None:
    model, x, exact = linear_gaussian(encoder_error=0.4)
    many = x.repeat(200, 1)
    bounds = []
    for k in (1, 10, 100):
        other = vae((PIXELS,), (), LATENTS, layer="dense", decoder="gaussian", num_importance=k).to(
            DTYPE
        )
        other.load_state_dict(model.state_dict())
        terms = whvi.elbo(other, other.bound(), many, many, num_data=len(many), generator=seeded())
        bounds.append(terms.value.item() / len(many))
    assert bounds[0] < bounds[1] < bounds[2] < exact.mean().item() + 0.01


def test_the_elbo_is_its_closed_form() -> None:
    model, x, exact = linear_gaussian(encoder_error=0.4)
    latents, w = model.encode(x), model.decoder[0].weight
    sigma = model.pixels.log_scale.exp()
    error = (x - model.decode(latents.mean)).square().sum(-1)
    spread = (latents.scale.square() * w.square().sum(0)).sum(-1)
    log_norm = PIXELS * (sigma.log() + 0.5 * math.log(2 * math.pi))
    q = torch.distributions.Normal(latents.mean, latents.scale)
    p = torch.distributions.Normal(torch.zeros((), dtype=DTYPE), torch.ones((), dtype=DTYPE))
    latent_kl = torch.distributions.kl_divergence(q, p).sum(-1)
    closed = -0.5 * (error + spread) / sigma**2 - log_norm - latent_kl
    with torch.no_grad(), sampling(WeightDraws(None, seeded())):
        values = model(x.expand(4000, *x.shape)).squeeze(-1)
    z = (values.mean(0) - closed) / (values.std(0) / math.sqrt(4000))
    assert z.abs().max() < 5
    assert (closed < exact).all()


@pytest.mark.parametrize("layer", KINDS)
def test_terms_are_what_fit_maximises(layer: str) -> None:
    model, x = small(layer), binary(NUM_DATA, PIXELS)
    with sampling(LocalReparameterization(seeded())):
        terms = model.terms(x)
    whole = whvi.elbo(model, model.bound(), x, x, num_data=1000, generator=seeded())
    assert_close(whole.kl, terms.decoder_kl + terms.encoder_kl, check_dtype=False)
    assert_close(whole.value, terms.elbo(1000))
    assert_close(terms.latent_kl, model_kl(model, x))
    assert (terms.decoder_kl > 0) == (layer != "dense")


def model_kl(model: Vae, x: Tensor) -> Tensor:
    """Return the KL of the latents by ``torch.distributions``, for the noise of the test above."""
    with sampling(LocalReparameterization(seeded())):
        q = torch.distributions.Normal(*model.encode(x))
    return torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1)


def test_weight_kls_are_sums_over_layers_and_counted_once() -> None:
    model, x = small(), binary(NUM_DATA, PIXELS)
    some, more = model.terms(x[:3]), model.terms(x)
    assert_close(some.decoder_kl, more.decoder_kl, rtol=0, atol=0)
    assert_close(more.decoder_kl, sum(layer.kl() for layer in model.decoder[::2]))
    assert_close(more.encoder_kl, sum(layer.kl() for layer in model.encoder[::2]))
    per_image = (more.reconstruction - more.latent_kl).mean()
    expected = 10 * per_image - more.decoder_kl - more.encoder_kl
    assert_close(more.elbo(10), expected)


def test_weight_draws_are_averaged_in_the_probability() -> None:
    model, x = small(), binary(9, PIXELS)
    both = model.log_likelihood(x, num_importance=12, num_weights=4, generator=seeded())
    draws = model.log_likelihood_draws(x, num_weights=4, num_latents=3, generator=seeded())
    assert_close(both, draws.exp().mean(0).log())
    assert (draws.std(0) > 0).all()


def test_one_draw_of_weights_serves_all_images() -> None:
    model, weights = small(), []

    def see(layer: torch.nn.Module, *_: object) -> None:
        weights.append(torch.cat([layer.weight.flatten(), model.decoder[2].weight.flatten()]))

    model.encoder[0].register_forward_hook(see)
    model.log_likelihood_draws(binary(250, PIXELS), num_weights=2, num_latents=60)
    assert len(weights) == 6  # of two draws and three parts of the images
    first, second = torch.stack(weights[:3]), torch.stack(weights[3:])
    assert torch.equal(first, first[:1].expand_as(first))
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("layer", KINDS)
def test_the_dense_form_of_a_draw_is_the_draw(layer: str) -> None:
    model, z = small(layer), normal(5, 2)
    with torch.no_grad(), sampling(WeightDraws(None, seeded())):
        assert_close(model._drawn_decoder()(z), model.decoder(z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_importance", [1, 4])
@pytest.mark.parametrize("layer", KINDS)
def test_fit_raises_the_bound(layer: str, num_importance: int) -> None:
    model, x = small(layer, num_importance=num_importance), binary(4, PIXELS).repeat(500, 1)
    config = FitConfig(num_steps=100, batch_size=50, learning_rate=0.02, record_every=25)
    history = whvi.fit(model, model.bound(), (x, x), config=config, validation=(x[:9], x[:9]))
    elbos = [a - b for a, b in zip(history.expected_log_lik, history.kl, strict=True)]
    assert elbos[-1] > elbos[0] + 50
    assert history.validation[-1] > -PIXELS * math.log(2)


def test_latents_of_one_image_share_their_weights() -> None:
    model, sampled = small(num_importance=5), []
    model.decoder[0].register_forward_hook(lambda *_: sampled.append(current_sampler()))
    with sampling(LocalReparameterization(seeded())) as sampler:
        model(binary(4, PIXELS))
    assert isinstance(sampled[0], WeightDraws)  # fresh weights per latent would not be a bound
    assert current_sampler() is not sampler


@pytest.mark.parametrize("layer", KINDS)
def test_saved_and_loaded_is_the_same_bitwise(layer: str, tmp_path) -> None:
    model, x = small(layer, num_importance=3), binary(9, PIXELS)
    model.save(tmp_path / "a.safetensors")
    other = load_vae(tmp_path / "a.safetensors")
    assert other.config == model.config
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    found = [m.log_likelihood(x, num_importance=20, generator=seeded()) for m in (model, other)]
    assert torch.equal(*found)


def test_damaged_and_foreign_files_are_refused(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    small().save(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="SHA-256"):
        load_vae(path)
    small(num_latents=2).save(path)
    path.write_bytes(whvi._files.seal({}, {"format": "other", "version": 1, "config": {}}))
    with pytest.raises(ModelFileError, match="config"):
        load_vae(path)


@pytest.mark.parametrize("decoder", ["bernoulli", "categorical", "gaussian"])
@pytest.mark.parametrize("layer", KINDS)
def test_convolutions(layer: str, decoder: str) -> None:
    torch.manual_seed(0)
    model = vae((2, 8, 4), (16,), 3, layer=layer, decoder=decoder, num_levels=4, channels=(5, 6))
    x = model.sample(7, generator=seeded())
    model.check_images(x)
    assert model.reconstruct(x).shape == x.shape == (7, 2, 8, 4)
    assert model.encode(x).mean.shape == (7, 3)
    assert model.log_likelihood(x, num_importance=20).shape == (7,)
    config = FitConfig(num_steps=30, batch_size=7, learning_rate=0.01, record_every=10)
    history = whvi.fit(model, model.bound(), (x, x), config=config, validation=(x, x))
    elbos = [a - b for a, b in zip(history.expected_log_lik, history.kl, strict=True)]
    assert elbos[-1] > elbos[0]


@pytest.mark.parametrize("shape", [(5,), (3, PIXELS + 1), (3, 2, PIXELS - 1)])
def test_images_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"shape \(N, 6\), got"):
        small().log_likelihood(binary(*shape))


def test_pixels_out_of_range_are_refused_by_name() -> None:
    model, x = small(), binary(5, PIXELS)
    x[3, 2] = 0.25
    with pytest.raises(DataError, match=r"0 or 1.*1 are not \(first: 0.25 at index \(3, 2\)\)"):
        whvi.fit(model, model.bound(), (x, x), config=FitConfig(num_steps=1))
    for call in (model.reconstruct, model.terms, model.log_likelihood):
        with pytest.raises(DataError, match=r"0\.25"):
            call(x)
    x[3, 2] = torch.nan
    with pytest.raises(DataError, match="nan"):
        model.log_likelihood(x)
    grey = small(decoder="categorical", num_levels=5)
    grey.check_images(torch.full((1, PIXELS), 0.75, dtype=DTYPE))
    with pytest.raises(DataError, match=r"one of 5 levels.*first: 0.7 "):
        grey.check_images(torch.full((1, PIXELS), 0.7, dtype=DTYPE))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": "sparse"}, "layer must be one of whvi, mean_field, dense, got 'sparse'"),
        ({"decoder": "poisson"}, "decoder must be .* got 'poisson'"),
        ({"decoder": "categorical", "num_levels": 1}, "num_levels .* got 1"),
        ({"num_latents": 0}, "num_latents .* got 0"),
        ({"num_importance": 0}, "num_importance .* got 0"),
        ({"block_sizes": (4,)}, r"encoder and decoder, got \(4,\)"),
        ({"channels": (4,)}, r"multiples of 2, got \(6,\)"),
        ({"hidden": (8, -1)}, "every entry of hidden .* got -1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**{"layer": "whvi", **options})


def test_importance_samples_must_be_shared_out_evenly() -> None:
    with pytest.raises(ConfigError, match="multiple of num_weights = 10, got 15"):
        small().log_likelihood(binary(2, PIXELS), num_importance=15)
