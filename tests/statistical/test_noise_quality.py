"""Is the noise normal and independent? Moments, distribution, correlations, a public battery.

Seeds are fixed, so each p-value is one number: a limit of 1e-4 fails a sound generator in one of
ten thousand such numbers, and that once and for all.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess

import numpy as np
import pytest
import torch
from scipy import stats

from whvi._kernel.noise import normal_from_seed
from whvi.functional import noisy_structured_product
from whvi.sampling import draw_seed
from whvi.transforms import hadamard_matrix

COUNT = 1 << 21
SEEDS = [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in (1, 123_456_789)), 2**62 + 5]
LIMIT = 1e-4
NIGHTLY_TESTS = [  # dieharder: number, name; each reads the words once
    (0, "birthdays"),
    (2, "32x32 rank"),
    (8, "count the ones, stream"),
    (10, "parking lot"),
    (15, "runs"),
    (100, "sts monobit"),
    (101, "sts runs"),
    (102, "sts serial"),
    (204, "kolmogorov-smirnov"),
    (209, "monobit, 2"),
]


def noise(seed, count=COUNT):
    return normal_from_seed((count,), seed).double().numpy()


def p_of_z(z):
    return math.erfc(abs(z) / math.sqrt(2))


@pytest.mark.parametrize("seed", SEEDS)
def test_moments(seed):
    x = noise(seed)
    moments = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10_170)}  # mean, variance
    for order, (mean, variance) in moments.items():
        z = ((x**order).mean() - mean) / math.sqrt(variance / len(x))
        assert p_of_z(z) > LIMIT, order


@pytest.mark.parametrize("seed", SEEDS)
def test_distribution(seed):
    x = noise(seed)
    assert stats.kstest(x, "norm").pvalue > LIMIT
    # and by place inside a group, where a fault of the layout would show
    places = x.reshape(-1, 64)
    p = [stats.kstest(places[:, i], "norm").pvalue for i in range(64)]
    assert min(p) > LIMIT / 64
    assert stats.kstest(p, "uniform").pvalue > LIMIT


@pytest.mark.parametrize("seed", SEEDS)
def test_bins_of_equal_probability(seed):
    edges = stats.norm.ppf(np.arange(1, 1000) / 1000)
    counts = np.bincount(np.searchsorted(edges, noise(seed)), minlength=1000)
    assert stats.chisquare(counts).pvalue > LIMIT


def test_tails():
    x = noise(11)
    for threshold in (3, 3.5, 4, 4.5):
        for tail in (x > threshold, x < -threshold):
            expected = stats.norm.sf(threshold)
            assert stats.binomtest(int(tail.sum()), len(x), expected).pvalue > LIMIT
    for extreme in (x.max(), -x.min()):
        p = 1 - stats.norm.cdf(extreme) ** len(x)
        assert LIMIT < p < 1 - LIMIT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("power", [1, 2])
def test_autocorrelation(seed, power):
    """Lags inside a group, across groups, rows of usual widths, chunks of work and vectors."""
    x = noise(seed) ** power
    x = (x - x.mean()) / x.std()
    for lag in [*range(1, 130), 255, 256, 257, 512, 1024, 4096, 16_384, 16_385, 32_768, 65_536]:
        z = (x[lag:] * x[:-lag]).sum() / math.sqrt(len(x) - lag)
        assert p_of_z(z) > LIMIT / 150, lag  # for about 150 lags


@pytest.mark.parametrize("lag", [1, 16, 32, 64, 128, 16_384])
def test_pairs_fill_the_plane(lag):
    x = noise(3)
    x = x.reshape(-1, lag * 2)[: len(x) // (2 * lag)]
    bins = [
        np.minimum((stats.norm.cdf(part) * 16).astype(int), 15).ravel()
        for part in (x[:, :lag], x[:, lag:])
    ]
    counts = np.bincount(bins[0] * 16 + bins[1], minlength=256)
    assert stats.chisquare(counts).pvalue > LIMIT


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (2**32 - 1, 2**32), (5, 5 + 2**32), (0, 2**62)])
def test_streams_of_neighbouring_seeds_are_independent(pair):
    a, b = (noise(seed) for seed in pair)
    for power in (1, 2):
        assert stats.pearsonr(a**power, b**power).pvalue > LIMIT
    # nor is one the other shifted by a few places or groups
    for lag in (1, 2, 16, 32, 64, 128, 1024):
        assert p_of_z((a[lag:] * b[:-lag]).sum() / math.sqrt(len(a) - lag)) > LIMIT
    assert len(np.intersect1d(a[:4096].view(np.int64), b[:4096].view(np.int64))) < 8


def test_successive_calls_are_independent():
    generator = torch.Generator().manual_seed(0)
    calls = torch.stack(
        [normal_from_seed((512,), draw_seed(generator)) for _ in range(1000)]
    ).double()
    correlation = np.corrcoef(calls.numpy())[np.triu_indices(1000, 1)] * math.sqrt(512)
    assert p_of_z(correlation.mean() * math.sqrt(len(correlation))) > LIMIT
    assert abs(correlation.std() - 1) < 0.02
    assert abs(correlation).max() < 7


def test_rows_of_a_noisy_product_are_independent():
    """Recover eps from ``y = s1 H(scale * eps * 1)``: rows, blocks and draws share nothing."""
    size, rows, blocks, draws = 32, 150, 3, 4
    x = torch.zeros(draws, rows, 1, size, dtype=torch.float64)
    x[..., 0] = size**0.5
    one, zero = (torch.full((blocks, size), v, dtype=torch.float64) for v in (1.0, 0.0))
    y = noisy_structured_product(x, one, zero, one, one, generator=torch.Generator().manual_seed(4))
    eps = (y @ hadamard_matrix(size, dtype=torch.float64)).flatten(0, -2).numpy()
    assert stats.kstest(eps.ravel(), "norm").pvalue > LIMIT
    correlation = np.corrcoef(eps)[np.triu_indices(len(eps), 1)]
    assert abs(correlation).max() < 0.95  # no row twice; independent rows of 32 stay below 0.9
    z = correlation * math.sqrt(size - 1)
    assert p_of_z(z.mean() * math.sqrt(len(z))) > LIMIT


@pytest.mark.nightly
def test_moments_of_a_long_stream():
    total, sums = 0, np.zeros(4)
    for seed in range(100):
        x = noise(10_000 + seed)
        sums += [x.sum(), (x**2 - 1).sum(), (x**3).sum(), (x**4 - 3).sum()]
        total += len(x)
    z = sums / np.sqrt(np.array([1, 2, 15, 96]) * total)
    assert all(p_of_z(value) > LIMIT for value in z)


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "name"), NIGHTLY_TESTS)
def test_public_battery(kernel, number, name):
    program = shutil.which("dieharder")
    if program is None:
        pytest.skip("needs the program dieharder (Debian package of this name)")
    command = [
        program,
        "-g",
        "200",
        "-d",
        str(number),
        "-c",
        ",",
        "-D",
        "test_name",
        "-D",
        "pvalues",
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    seed, groups = draw_seed(torch.Generator().manual_seed(number)), 1 << 14
    words = np.empty((groups, 64), dtype=np.uint32)
    first = 0
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it closes the pipe when it has read enough
        while process.poll() is None:
            kernel.words(seed, first, groups, words.ctypes.data)
            process.stdin.write(words.tobytes())
            first += groups
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    output = process.stdout.read().decode()
    process.stdout.close()
    process.wait()
    p_values = [float(line.split(",")[-1]) for line in output.splitlines() if _ends_in_number(line)]
    assert p_values, output
    assert all(1e-6 < p < 1 - 1e-6 for p in p_values), output


def _ends_in_number(line):
    try:
        return 0 <= float(line.split(",")[-1]) <= 1 and not line.startswith("#")
    except ValueError:
        return False
