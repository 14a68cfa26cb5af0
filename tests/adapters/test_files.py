"""Files of adapters: small, exact, and refused by any other base."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import whvi
from tests.adapters.nets import ImageNet, mlp, rows
from tests.adapters.test_conversion import at_mean, images, moved
from whvi.adapters import adapter_names, fingerprint, load_adapter, save_adapter, use_adapter
from whvi.errors import ConfigError, ModelFileError
from whvi.posteriors import LowRankGaussian


@pytest.mark.parametrize(
    "options",
    [{}, {"num_blocks": 2, "posterior": "low_rank"}, {"transform": "butterfly-random"}],
    ids=str,
)
def test_an_adapter_goes_round(tmp_path, options) -> None:
    net, x = images()
    model = moved(whvi.convert(net, train=[nn.BatchNorm2d, "linear"], **options))
    model.bn1.modules_to_save["default"].running_mean += 1
    path = tmp_path / "adapter.safetensors"
    save_adapter(model, path)
    fresh = images()[0]
    fresh.linear.reset_parameters()  # a head that is trained is not part of the base
    again = load_adapter(fresh, path)
    assert torch.equal(at_mean(again, x), at_mean(model, x))
    assert [n for n, p in again.named_parameters() if p.requires_grad] == [
        n for n, p in model.named_parameters() if p.requires_grad
    ]
    assert not any(isinstance(m, whvi.adapters.Adapted) for m in fresh.modules())


def test_the_file_holds_the_adapter_alone(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512))
    save_adapter(whvi.convert(net), tmp_path / "a")
    assert (tmp_path / "a").stat().st_size < 2 * 4 * 512 * 4 + 2000


def test_several_on_one_base(tmp_path) -> None:
    net, (x, _) = mlp(), rows()
    values = {}
    for seed, name in enumerate(("a", "b")):
        model = moved(whvi.convert(net, name=name, train="4"), seed)
        save_adapter(model, tmp_path / name, name=name)
        values[name] = at_mean(model, x)
    both = load_adapter(load_adapter(net, tmp_path / "a"), tmp_path / "b", inplace=True)
    third = load_adapter(both, tmp_path / "a", name="c")
    assert adapter_names(third) == ["a", "b", "c"]
    for name, source in (("a", "a"), ("b", "b"), ("c", "a")):
        use_adapter(third, name)
        assert torch.equal(at_mean(third, x), values[source])
    with pytest.raises(ConfigError, match="adapter 'a' already"):
        load_adapter(both, tmp_path / "a")


def test_another_base_is_refused(tmp_path) -> None:
    net, path = mlp(), tmp_path / "a"
    save_adapter(moved(whvi.convert(net)), path)
    with pytest.raises(ModelFileError, match="another base: the values of its parameters differ"):
        load_adapter(mlp(seed=1), path)
    with torch.no_grad():
        net[0].weight[0, 0] += 1e-6
    with pytest.raises(ModelFileError, match="values"):
        load_adapter(net, path)
    with pytest.raises(ModelFileError, match="another base: the names, shapes or data types"):
        load_adapter(ImageNet(), path)
    with pytest.raises(ModelFileError, match="names, shapes"):
        load_adapter(mlp().double(), path)


def test_the_fingerprint_is_that_of_the_base() -> None:
    net = mlp()
    model = moved(whvi.convert(net, train="4"))
    assert fingerprint(model) == fingerprint(net)
    assert fingerprint(model, without=["4"]) == fingerprint(net, without=["4"]) != fingerprint(net)


def test_options_that_are_not_plain_are_given_again(tmp_path) -> None:
    net, (x, _), path = mlp(), rows(), tmp_path / "a"
    low_rank = partial(LowRankGaussian, rank=3)
    model = moved(whvi.convert(net, posterior=low_rank))
    save_adapter(model, path)
    with pytest.raises(ConfigError, match=r"does not hold the options \['posterior'\]"):
        load_adapter(net, path)
    again = load_adapter(net, path, posterior=low_rank)
    assert torch.equal(at_mean(again, x), at_mean(model, x))
    with pytest.raises(ModelFileError, match="tensors of 0"):
        load_adapter(net, path, posterior="diagonal")


def test_damage_and_other_files_are_refused(tmp_path) -> None:
    net, path = mlp(), tmp_path / "a"
    save_adapter(whvi.convert(net), path)
    payload = bytearray(path.read_bytes())
    payload[-5] ^= 1
    path.write_bytes(payload)
    with pytest.raises(ModelFileError, match="damaged"):
        load_adapter(net, path)
    path.write_bytes(whvi._files.seal({}, {"format": "something else"}))
    with pytest.raises(ModelFileError, match="not an adapter of whvi"):
        load_adapter(net, path)
    with pytest.raises(ConfigError, match="no adapter 'b'"):
        save_adapter(whvi.convert(net), path, name="b")


def test_options_that_would_be_ignored_and_wrong_names_are_refused(tmp_path) -> None:
    save_adapter(whvi.convert(mlp(), num_blocks=2), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"leave out \['num_blocks'\]"):
        load_adapter(mlp(), tmp_path / "a", num_blocks=3)
    with pytest.raises(ConfigError, match=r"name must be a text .* got 'keys'"):
        load_adapter(mlp(), tmp_path / "a", name="keys")
    for call in (fingerprint, adapter_names, lambda m: load_adapter(m, tmp_path / "a")):
        with pytest.raises(ConfigError, match=r"model must be a torch\.nn\.Module, got NoneType"):
            call(None)
