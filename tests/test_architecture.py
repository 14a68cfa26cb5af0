"""Who may import whom, and what the source may not contain: a walk over the syntax trees."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import whvi

ROOT = Path(whvi.__file__).parent

# A unit imports from its own row and from rows above it.
ROWS = [
    {"errors"},
    {"_checks", "_files"},
    {"_kernel", "transforms", "sampling"},
    {"functional", "priors", "posteriors"},
    {"layers", "likelihoods", "predictive", "functions"},
    {"adapters", "elbo", "training", "models", "gp", "linearized"},
    {"botorch", "tabular", "plots", "report"},
    {"cli", "doctor", "__main__"},
]
# It knows nothing of models, and nothing below the last three rows knows of it.
APART = {"metrics": {"errors", "_checks"}}
USERS_OF_APART = {*ROWS[5], *ROWS[6], *ROWS[7]}

# Optional packages, and the units that are there for their sake; elsewhere they are imported
# inside the function that needs them.
OPTIONAL = {
    "botorch": {"botorch"},
    "gpytorch": {"botorch"},
    "jinja2": set(),
    "joblib": set(),
    "matplotlib": {"plots"},
    "onnx": set(),
    "onnxscript": set(),
    "pandas": {"tabular", "cli"},
    "pooch": set(),
    "rich": {"cli"},
    "scipy": {"tabular"},  # scikit-learn needs it anyway
    "sklearn": {"tabular"},
    "typer": {"cli"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
modules = pytest.mark.parametrize("name", MODULES)


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def imports(tree: ast.AST, *, lazy: bool = True) -> list[str]:
    """Dotted names that a tree imports when it runs; without ``lazy``, when it is imported."""
    found: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not lazy:
            continue
        elif not is_for_types_only(node):
            found += imports(node, lazy=lazy)
    return found


def imported_modules(name: str, *, lazy: bool = True) -> set[str]:
    """The modules of this package that ``name`` imports."""
    found = set()
    for target in imports(MODULES[name], lazy=lazy):
        parent = target.rpartition(".")[0]
        if target in MODULES:
            found.add(target)
        elif parent in MODULES:
            found.add(parent)
    return found - {name, "whvi"}


def unit(name: str) -> str:
    return name.split(".")[1]


def test_every_unit_has_a_place():
    known = {*APART, *set().union(*ROWS)}
    units = {unit(name) for name in MODULES if name != "whvi"}
    assert units <= known, f"write down in ROWS who may import {sorted(units - known)}"


def allowed(importer: str) -> set[str]:
    if importer in APART:
        return {importer, *APART[importer]}
    row = next(i for i, units in enumerate(ROWS) if importer in units)
    below = set().union(*ROWS[: row + 1])
    return below | set(APART) if importer in USERS_OF_APART else below


@modules
def test_imports_point_down(name):
    if name == "whvi":
        return  # the front of the house shows all of it
    wrong = {target for target in imported_modules(name) if unit(target) not in allowed(unit(name))}
    assert not wrong


@modules
def test_nobody_imports_the_front(name):
    targets = imports(MODULES[name])
    assert not [
        t for t in targets if t.startswith("whvi.") and t.count(".") == 1 and t not in MODULES
    ]


@pytest.mark.parametrize("lazy", [False, True], ids=["all", "tabular, imports in functions too"])
def test_there_are_no_cycles(lazy):
    names = [name for name in MODULES if not lazy or name.startswith("whvi.tabular")]
    edges = {name: imported_modules(name, lazy=lazy) & {*names} for name in names}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in sorted(edges[name]):
                visit(target, (*path, name))
            done.add(name)

    for name in edges:
        visit(name, ())


@modules
def test_nothing_is_imported_by_star(name):
    assert not [t for t in imports(MODULES[name]) if t.endswith(".*")]


@modules
def test_optional_packages_are_imported_where_they_are_needed(name):
    packages = {target.split(".")[0] for target in imports(MODULES[name], lazy=False)}
    for package, owners in OPTIONAL.items():
        if package in packages:
            assert name != "whvi"
            assert unit(name) in owners, f"import {package} inside the function that needs it"


# ---- what lets a file run code ------------------------------------------------------------------

FORBIDDEN_IMPORTS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("torch.load", "torch.jit.load", "torch.save", "joblib.load", "joblib.dump"),
    *("os.system", "os.popen", "numpy.load", "np.load", "yaml.load", "pandas.read_pickle"),
}
FORBIDDEN_NAMES = {"torch.load", "torch.save", "joblib.load", "numpy.load", "builtins.eval"}


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def faults(tree: ast.AST) -> list[str]:
    found = [
        t for t in imports(tree) if t.split(".")[0] in FORBIDDEN_IMPORTS or t in FORBIDDEN_NAMES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"extractall", "unpack_archive"}:
            found.append(node.attr)
        if not isinstance(node, ast.Call):
            continue
        if dotted(node.func) in FORBIDDEN_CALLS:
            found.append(dotted(node.func))
        for keyword in node.keywords:
            if keyword.arg == "allow_pickle":
                found.append("allow_pickle")
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append("shell")
    return found


@modules
def test_no_file_can_run_code(name):
    assert not faults(MODULES[name])


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "import dill as d",
            "from torch import load",
        ),
        *("torch.load(f)", "eval(s)", "exec(s)", "np.load(f, allow_pickle=True)", "joblib.load(f)"),
        *("subprocess.run(c, shell=True)", "tar.extractall(p)", "os.system(c)", "__import__(n)"),
        "def f():\n    import pickle",
    ],
)
def test_the_gate_can_close(source):
    assert faults(ast.parse(source))


# ---- the cost of the import ---------------------------------------------------------------------

PROBE = """
import json, sys, time
import torch
before, start = set(sys.modules), time.process_time()
import whvi
seconds = time.process_time() - start
print(json.dumps([seconds, sorted({m.split(".")[0] for m in set(sys.modules) - before})]))
"""


def probe():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(output.stdout)


def test_the_import_is_light():
    probes = [probe()]
    assert not set(OPTIONAL) & set(probes[0][1])
    while len(probes) < 5 and probes[-1][0] >= 0.3:  # a busy machine is not our fault
        probes.append(probe())
    assert min(seconds for seconds, _ in probes) < 0.3


# ---- the documented rows ------------------------------------------------------------------------


def test_the_rows_are_those_of_the_design_page():
    page = (ROOT.parents[1] / "docs" / "design.md").read_text()
    for number, units in enumerate(ROWS, 1):
        line = next(each for each in page.splitlines() if each.startswith(f"| {number} |"))
        named = line.split("|")[2]
        assert all(f"`{name}`" in named for name in units - {"__main__"}), line


def test_nothing_of_the_library_needs_the_reproduction():
    users = [
        n
        for n, tree in MODULES.items()
        if "reproduction" in {t.split(".")[0] for t in imports(tree)}
    ]
    assert not users
