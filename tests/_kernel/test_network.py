"""All layers and draws of an ensemble in one call: the kernel against the plain composition."""

from __future__ import annotations

import pytest
import torch

from whvi._checks import block_size_for
from whvi.tabular.functions import DenseDraws, Functions, Gate, Linearized, StructuredDraws, Tangent

GATE = Gate(1.0, 0.0, 0.0, 0.0, 1.0)
CASES = [  # features, columns, hidden, outputs, members, draws
    ("relu", 8, (128, 128), 1, 3, 2),
    ("relu", 3, (10, 7), 2, 2, 3),
    ("relu", 130, (24,), 5, 1, 4),
    ("relu", 2, (300, 40, 9), 1, 2, 1),
    ("sine", 8, (512, 512), 2, 2, 2),
    ("sine", 5, (33, 12), 1, 2, 3),
    ("laplace", 8, (64, 20), 3, 1, 2),
]
cases = pytest.mark.parametrize(
    ("features", "columns", "hidden", "outputs", "members", "draws"), CASES
)
isas = pytest.mark.parametrize("isa", ["avx512", "avx2", "baseline"])


@pytest.fixture
def use(kernel, isa):
    if isa not in kernel.instruction_sets():
        pytest.skip(f"the processor has no {isa}")
    before = kernel.instruction_set()
    kernel.use(isa)
    yield
    kernel.use(before)


def functions(features, columns, hidden, outputs, members, draws, dtype=torch.float32):
    generator = torch.Generator().manual_seed(columns + outputs)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    layers, before = [], columns
    for k, width in enumerate(hidden):
        if k == 0 and features == "sine":
            before = max(columns, width)
        size = block_size_for(before)
        entries = -(-width // size) * size
        s1, s2 = normal(members, entries), normal(members, entries)
        layers.append(
            StructuredDraws(s1, normal(members, draws, entries), s2, normal(members, width))
        )
        before = width
    weight = normal(members, draws, outputs, before) / before**0.5
    return Functions(features, (*layers, DenseDraws(weight, normal(members, outputs))))


def linearized(made: Functions, num_draws: int):
    generator = torch.Generator().manual_seed(0)
    tangents = []
    for layer in made.layers:
        mean = (layer.g if isinstance(layer, StructuredDraws) else layer.weight)[:, 0]
        vectors = (layer.s1, mean, layer.s2) if isinstance(layer, StructuredDraws) else (mean,)
        sizes = [v[0].numel() for v in (*vectors, layer.bias)]
        draws = [torch.randn(len(mean), num_draws, n, generator=generator) for n in sizes]
        tangents.append(Tangent(mean.contiguous(), tuple(d.to(mean) for d in draws)))
    return Linearized(made, tuple(tangents), GATE)


def rows(made: Functions, columns: int, num_rows: int, *, own: bool = False):
    generator = torch.Generator().manual_seed(num_rows)
    shape = (made.shape[0], num_rows, columns) if own else (num_rows, columns)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to(made.layers[0].bias.dtype)


def composed(call, monkeypatch):
    """Run without the kernel's networks."""
    with monkeypatch.context() as patch:
        patch.setattr("whvi.tabular.functions.kernel_takes_network", lambda *_: False)
        return call()


@isas
@cases
@pytest.mark.parametrize("own", [False, True])
def test_draws(use, monkeypatch, features, columns, hidden, outputs, members, draws, own):
    made = functions(features, columns, hidden, outputs, members, draws, torch.float64)
    x = rows(made, columns, 29, own=own)
    assert made.network(made.layers, x) is not None
    torch.testing.assert_close(made(x), composed(lambda: made(x), monkeypatch))


@isas
@cases
@pytest.mark.parametrize("own", [False, True])
def test_changes(use, monkeypatch, features, columns, hidden, outputs, members, draws, own):
    made = functions(features, columns, hidden, outputs, members, draws, torch.float64)
    far, x = linearized(made, 70), rows(made, columns, 29, own=own)
    for num_kept in (0, 5):
        found = far.values(x, outputs, num_kept)
        expected = composed(lambda kept=num_kept: far.values(x, outputs, kept), monkeypatch)
        torch.testing.assert_close(tuple(found), tuple(expected))


@isas
@cases
def test_float32_is_as_exact_as_the_composition(
    use, monkeypatch, features, columns, hidden, outputs, members, draws
):
    """Rounding errors of both, against float64: sums in another order, sines to 3 ulp."""
    exact = functions(features, columns, hidden, outputs, members, draws, torch.float64)
    made = functions(features, columns, hidden, outputs, members, draws)
    x = rows(made, columns, 40)
    truth, far = exact(x.double()), linearized(exact, 64).values(x.double(), outputs, 0)

    def errors():
        found = linearized(made, 64).values(x, outputs, 0)
        pairs = ((made(x), truth), (found.f, far.f), (found.variance.sqrt(), far.variance.sqrt()))
        return [float((a - b).square().mean().sqrt() / b.square().mean().sqrt()) for a, b in pairs]

    for error, composition in zip(errors(), composed(errors, monkeypatch), strict=True):
        assert error < 2 * composition + 4 * torch.finfo(torch.float32).eps


@isas
@pytest.mark.parametrize("features", ["relu", "sine"])
def test_a_row_does_not_depend_on_the_others(use, features):
    made = functions(features, 8, (128, 40), 2, 2, 3)
    far, x = linearized(made, 64), rows(made, 8, 100)
    x[3] = torch.inf
    whole = made(x), *far.values(x, 2, 4)
    for picked in ([0], [99, 3, 50], list(range(10, 90)), [7] * 25):
        part = made(x[picked]), *far.values(x[picked], 2, 4)
        for all_rows, some in zip(whole, part, strict=True):
            axis = 1 if all_rows.dim() == 3 else 2
            expected = all_rows.index_select(axis, torch.tensor(picked))
            torch.testing.assert_close(some, expected, rtol=0, atol=0, equal_nan=True)


@isas
def test_sines_of_any_phase(use):
    """Phases are the biases of as many members as there are vectors of them."""
    phases = torch.cat([torch.linspace(-30, 30, 3200), torch.logspace(0, 7, 640)])
    phases = torch.cat([phases, -phases]).view(-1, 64)
    members, size = phases.shape
    none = torch.zeros(members, size)
    layer = StructuredDraws(none, none.unsqueeze(1), none, phases)
    weight = torch.eye(size).expand(members, 1, size, size).contiguous()
    made = Functions("sine", (layer, DenseDraws(weight, none)))
    found = made(torch.zeros(1, 3))[:, 0, 0].double()
    error = (found - 2**0.5 * phases.double().sin()).abs()
    # the first bound: the parts of pi that are left out, 1e-11 times the number of turns
    eps = torch.finfo(torch.float32).eps
    assert (error < 4 * eps).all()
    assert (error[phases.abs() < 1] < 4 * eps * phases[phases.abs() < 1].abs() + 1e-45).all()
