from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import reproduction
from reproduction.figure1 import _describe, build_model, reproduce_figure1
from whvi.transforms import hadamard_matrix


def jacobian(s1, s2):
    """``A[(i,j),k] = s1[i] s2[j] H[i,k] H[j,k]``, written out."""
    H = hadamard_matrix(8, dtype=s1.dtype)
    return torch.einsum("i,j,ik,jk->ijk", s1, s2, H, H).reshape(64, 8)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return reproduce_figure1(tmp_path_factory.mktemp("figure1"), quick=True)


def test_writes_pictures_and_numbers(result):
    assert [path.name for path in result.files] == ["figure1.png", "figure1.svg", "summary.json"]
    numbers = json.loads(result.files[-1].read_text())
    assert numbers["settings"]["fit"]["beta"] == 1.0
    assert numbers["g"]["size"] == 8
    assert numbers["vec_w"]["size"] == 64
    cov_g, s1, s2 = (torch.tensor(numbers[name]) for name in ("cov_g", "s1", "s2"))
    A = jacobian(s1, s2)
    torch.testing.assert_close(A @ cov_g @ A.T, result.cov_w)


def test_eight_numbers_spread_over_all_weights(result):
    numbers = json.loads(result.files[-1].read_text())
    assert numbers["vec_w"]["rank"] == numbers["g"]["rank"] == 8


def test_the_two_covariances_satisfy_the_equation():
    """``cov(vec W) = A Σ Aᵀ`` for any Σ, s1 and s2."""
    layer = build_model(seed=3)[0].double()
    matrix, generator = layer.matrix, torch.Generator().manual_seed(4)
    with torch.no_grad():
        matrix.posterior.lower.normal_(generator=generator)
        matrix.s1.normal_(generator=generator)
    A = jacobian(matrix.s1, matrix.s2)
    sigma = matrix.posterior.covariance()[0]
    torch.testing.assert_close(layer.weight_moments().covariance, A @ sigma @ A.T)


def test_a_seed_gives_one_figure(result, tmp_path):
    again = reproduce_figure1(tmp_path, quick=True)
    assert [p.read_bytes() for p in again.files] == [p.read_bytes() for p in result.files]


def test_the_committed_summary_holds_the_covariances_it_describes():
    folder = Path(reproduction.__file__).parent / "results" / "figure1"
    numbers = json.loads((folder / "summary.json").read_text())
    cov_g, s1, s2 = (torch.tensor(numbers[name]) for name in ("cov_g", "s1", "s2"))
    A = jacobian(s1, s2)
    for name, covariance in (("g", cov_g), ("vec_w", A @ cov_g @ A.T)):
        assert _describe(covariance) == pytest.approx(numbers[name], rel=1e-3)
    assert not numbers["settings"]["quick"]
