from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from reproduction.__main__ import main
from reproduction.cifar import SEEDS
from reproduction.cifar.images import CORRUPTIONS, augment, corrupted, normalise
from reproduction.cifar.methods import METHODS
from reproduction.cifar.networks import ResNet, pretrained
from reproduction.data import data_folder
from whvi.errors import DataError

FOLDER = Path(__file__).parents[3] / "reproduction" / "results" / "cifar"


@pytest.fixture
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (6, 3, 32, 32), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("depth", [20, 32])
def test_networks_have_the_published_number_of_parameters(depth: int) -> None:
    published = {20: 269_722, 32: 464_154}
    assert sum(p.numel() for p in ResNet(depth).parameters()) == published[depth]
    assert ResNet(depth)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_augmented_images_are_shifted_windows(images: torch.Tensor) -> None:
    found = augment(images, torch.Generator().manual_seed(1))
    wide = torch.nn.functional.pad(images, (4, 4, 4, 4))
    for image, origin in zip(found, wide, strict=True):
        windows = [
            window
            for i in range(9)
            for j in range(9)
            for window in (origin[:, i : i + 32, j : j + 32],)
        ]
        assert any(torch.equal(image, w) or torch.equal(image, w.flip(-1)) for w in windows)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_corruptions_grow_and_repeat(images: torch.Tensor, name: str) -> None:
    smooth = torch.nn.functional.avg_pool2d(images.float(), 5, 1, 2).round().to(torch.uint8)
    change = [float((corrupted(smooth, name, k) - smooth / 255).abs().mean()) for k in range(1, 6)]
    assert 0 < change[0] < change[2] < change[4]
    found = corrupted(images, name, 3)
    assert found.shape == images.shape
    assert float(found.min()) >= 0 <= 1 >= float(found.max())
    assert torch.equal(found, corrupted(images, name, 3))


def test_pixels_are_normalised_as_in_the_files(images: torch.Tensor) -> None:
    channel = (images[:, 0] / 255 - 0.485) / 0.229
    torch.testing.assert_close(normalise(images)[:, 0], channel)
    assert torch.equal(normalise(images), normalise(images / 255))


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(DataError, match="is not there"):
        pretrained(20, tmp_path)


@pytest.mark.nightly
def test_a_quick_run(tmp_path: Path) -> None:
    try:
        root = str(data_folder("weights").parent)
    except DataError as error:
        pytest.skip(str(error))
    options = ["cifar", "--quick", "--no-progress", "--data-dir", root, "-o", str(tmp_path)]
    assert main(options) == 0
    records = (tmp_path / "records.jsonl").read_bytes()
    assert main(options) == 0
    assert (tmp_path / "records.jsonl").read_bytes() == records
    rows = json.loads((tmp_path / "summary.json").read_text())
    assert [row["method"] for row in rows] == list(METHODS)


def test_committed_records_are_of_the_candidates() -> None:
    if not (FOLDER / "records.jsonl").exists():
        pytest.skip("not run yet")
    records = [json.loads(line) for line in (FOLDER / "records.jsonl").read_text().splitlines()]
    for record in records:
        assert record["settings"] in [dict(c) for c in METHODS[record["method"]].candidates]
        assert record["seed"] in SEEDS
