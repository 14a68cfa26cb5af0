"""The code of the README runs as it stands; figures quoted in pages are those of the records."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from reproduction.records import RecordStore
from reproduction.report import paired_differences
from reproduction.table1.paper import DATASETS
from reproduction.table1.summary import own_table, rivals_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TABLE1 = (ROOT / "reproduction" / "table1.md").read_text()
FIGURE2 = (ROOT / "reproduction" / "figure2.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_there_are_blocks():
    assert len(BLOCKS) == 3


def test_the_first_code_comes_within_250_words():
    assert len(README[: README.index("    pip install")].split()) <= 250


def test_the_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    session: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), session)
    torch.testing.assert_close(
        session["out"],
        session["z"] @ session["whvi"].dense_matrix(*(session[n] for n in ("s1", "g", "s2"))).T,
        atol=1e-3,  # sums of 1024 products of four normals, in float32
        rtol=1e-3,
    )
    assert session["f"].shape == (100, 5, 1)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
        *(f"reproduction/{path.name}" for path in sorted((ROOT / "reproduction").glob("*.md"))),
    ],
)
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    written_by_make_bench = {"benchmarks/results/README.md"}
    missing = [
        target
        for target in targets
        if target not in written_by_make_bench and not ((ROOT / page).parent / target).exists()
    ]
    assert not missing


def test_every_target_of_make_that_is_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"^ *make (\w+)|`make (\w+)`", pages, flags=re.MULTILINE))
    targets = {name for pair in named for name in pair if name}
    assert {"demo", "test"} <= targets
    rules = re.findall(r"^(\w[\w ]*):", makefile, flags=re.MULTILINE)
    assert targets <= {name for rule in rules for name in rule.split()}


# ---- the figures that are quoted come from the records -------------------------------------------


def _summary(name: str) -> list[dict]:
    return json.loads((ROOT / "reproduction" / "results" / name / "summary.json").read_text())


def test_the_tables_of_results_are_those_of_the_records():
    records = _table1()
    hint = 'copy "In short" of reproduction/results/table1/README.md into '
    assert own_table(records) in README, hint + "the README"
    assert own_table(records) in TABLE1, hint + "reproduction/table1.md"
    assert rivals_table(records) in TABLE1, hint + "reproduction/table1.md"


def _table1() -> list[dict]:
    return list(
        RecordStore(ROOT / "reproduction" / "results" / "table1" / "records.jsonl").read().values()
    )


def _ahead(reference: str, rival: str) -> dict[str, str]:
    """``"+−"`` by data set: RMSE, MNLL where the rival is ahead (+), behind (−) or level (=)."""

    def sign(difference) -> str:
        if abs(difference.mean) < 2 * difference.standard_error:
            return "="
        return "+" if difference.mean < 0 else "−"

    pairs = paired_differences(_table1(), reference)
    return {
        p.dataset: "".join(map(sign, p.differences.values())) for p in pairs if p.rival == rival
    }


def test_who_is_ahead_of_one_network_is_in_the_records():
    said = {
        "mean-field": {"energy", "kin8nm", "powerplant", "protein"},
        "deep-ensemble": {"energy", "naval", "protein"},
        "mc-dropout": {"concrete", "protein"},
        "noisy-kfac": {"kin8nm", "powerplant", "protein"},
        "extra-trees": {"powerplant", "protein"},
        "hist-gradient-boosting": {"powerplant", "concrete"},
    }
    for rival, names in said.items():
        found = _ahead("whvi", rival)
        assert {name for name, signs in found.items() if signs == "++"} == names, rival
    kfac = _ahead("whvi", "noisy-kfac")
    assert {name for name, signs in kfac.items() if signs[1] == "+"} == {
        *("protein", "boston", "kin8nm", "naval", "powerplant")
    }


def test_who_is_ahead_of_whvi_best_is_in_the_records():
    networks = ("mean-field", "mc-dropout", "noisy-kfac", "deep-ensemble")
    found = {rival: _ahead("whvi-best", rival) for rival in networks}
    clear = {n for n in DATASETS if all(found[rival][n] == "−−" for rival in networks)}
    assert clear == {"boston", "kin8nm", "powerplant", "protein", "yacht"}
    assert found["mc-dropout"]["concrete"] == "=="
    assert found["deep-ensemble"]["concrete"] == "=−"
    assert found["deep-ensemble"]["energy"] == "++"
    assert found["deep-ensemble"]["naval"] == "−+"
    boosting, extra = (
        _ahead("whvi-best", name) for name in ("hist-gradient-boosting", "extra-trees")
    )
    assert {n for n, signs in extra.items() if signs[0] == "+"} == {"protein"}
    assert {n for n, signs in boosting.items() if signs[0] == "+"} == {"powerplant"}
    assert boosting["concrete"][0] == "="


def test_the_figures_beside_whvi_best_are_those_of_the_records():
    pairs = {
        (p.dataset, p.rival): p.differences for p in paired_differences(_table1(), "whvi-best")
    }

    def quoted(difference, decimals: int) -> str:
        return f"{-difference.mean:.{decimals}f} ± {difference.standard_error:.{decimals}f}"

    text = " ".join(TABLE1.split())
    energy, naval = pairs["energy", "deep-ensemble"], pairs["naval", "deep-ensemble"]
    rmse, mnll = (quoted(energy[score], k) for score, k in (("rmse", 3), ("mnll", 2)))
    assert f"RMSE lower by {rmse}, MNLL by {mnll}" in text
    assert f"MNLL on naval (by {quoted(naval['mnll'], 2)})" in text
    for dataset, rival in (("powerplant", "hist-gradient-boosting"), ("protein", "extra-trees")):
        ratio = pairs[dataset, rival]["rmse"]
        assert f"{1 - ratio.rival / ratio.reference:.0%}" == "2%"
    trees = [
        p for (_, name), p in pairs.items() if name in ("extra-trees", "hist-gradient-boosting")
    ]
    assert len(trees) == 16
    assert all(p["mnll"].mean > 0 for p in trees)
    errors: dict[str, dict[int, float]] = {}
    for record in _table1():
        if record["dataset"] == "naval" and record["method"] != "WHVIRegressor":  # five splits
            errors.setdefault(record["method"], {})[record["split"]] = record["rmse"]
    lowest = [min(errors, key=lambda name: errors[name][k]) for k in range(20)]
    assert lowest.count("noisy-kfac") == 15
    worst = max(errors["noisy-kfac"][k] / errors["whvi"][k] for k in range(20))
    assert f"another {worst:.0f} times those of one WHVI network" in text
    sizes = {r["num_parameters"] for r in _summary("table1") if r["method"] == "whvi-best"}
    assert min(sizes) > 24_000
    assert max(sizes) < 160_000


def test_what_is_said_of_trees_is_in_the_records():
    path = ROOT / "benchmarks" / "results" / "versus_trees.json"
    better, likelier, excess, coverage = set(), set(), [], []
    for record in json.loads(path.read_text())["records"]:
        ours, *trees = record["scores"].values()
        ratio = ours["rmse"] / min(each["rmse"] for each in trees)
        if ratio < 1:
            better.add(record["data"])
        else:
            excess.append(ratio)
        if ours["mnll"] < min(each["mnll"] for each in trees):
            likelier.add(record["data"])
        coverage.append(f"{ours['coverage90']:.0%}")
    assert better == {"boston", "energy", "kin8nm", "naval", "yacht"}
    assert set(DATASETS) - likelier == {"powerplant"}
    assert [f"{min(excess):.2f}", f"{max(excess):.2f}"] == ["1.10", "1.15"]
    assert {"88%", "100%"} <= set(coverage)


def test_the_table_of_figure_2_is_that_of_the_records():
    found: dict[tuple[int, str, bool], list[float]] = {}
    for row in _summary("figure2"):
        if row["covariance"] == "diagonal":
            key = 4 * row["side"], row["method"], row["count_inducing"]
            found.setdefault(key, []).append(math.log(row["rmse_mean"]))
    columns = [(m, True) for m in ("whvi", "fourier", "sparse-spectrum", "sparse-gp")]
    for budget in (64, 128, 256):
        logs = [found[(budget, *each)] for each in [*columns, ("sparse-gp", False)]]
        means = [math.exp(sum(each) / 5) for each in logs]
        assert f"| {budget} | {' | '.join(f'{mean:.4f}' for mean in means)} |" in FIGURE2
