"""Round trips, and files that are damaged, untrue or hostile."""

import copy
import json
import os
import random
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

from whvi._files import seal
from whvi.errors import ModelFileError
from whvi.tabular import WHVIClassifier, WHVIRegressor, load_model
from whvi.tabular.modelfile import FORMAT_VERSION, read_model_file, write_model_file

QUICK = {"hidden_layer_sizes": (8,), "n_members": 2, "max_iter": 5, "num_draws": 4}
NUM_DAMAGED = 1000


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=30), "b": rng.choice(["x", "y"], 30)})


@pytest.fixture(scope="module")
def path(table, tmp_path_factory):
    y = table["a"].rename("target")
    model = WHVIRegressor(**QUICK, likelihood="gaussian", random_state=0).fit(table, y)
    path = tmp_path_factory.mktemp("models") / "model.whvi"
    model.save(path)
    np.save(path.with_suffix(".npy"), model.predict(table))
    return path


@pytest.fixture
def content(path):
    return copy.deepcopy(read_model_file(path))


def test_everything_comes_back(path, table):
    model = load_model(path)
    assert isinstance(model, WHVIRegressor)
    assert model.hidden_layer_sizes == (8,)
    assert model.target_name_ == "target"
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.schema_.columns[1].categories == ("x", "y")
    assert model.history_.step[-1] == model.n_iter_ == 5
    assert model.training_summary_["num_rows"] == 30
    assert model.predict(table).shape == (30,)


def test_a_process_that_never_saw_the_class_predicts_the_same_bits(path, table):
    code = (
        "import sys, numpy as np, pandas as pd; from whvi.tabular import load_model\n"
        "rng = np.random.default_rng(0)\n"
        "table = pd.DataFrame({'a': rng.normal(size=30), 'b': rng.choice(['x', 'y'], 30)})\n"
        "assert np.array_equal(load_model(sys.argv[1]).predict(table), np.load(sys.argv[2]))\n"
        "assert 'torch._dynamo' not in sys.modules  # a compiler, and seconds to import"
    )
    subprocess.run([sys.executable, "-c", code, path, path.with_suffix(".npy")], check=True)


def test_plain_safetensors_reads_it(path):
    with safe_open(path, "pt") as file:
        assert "inputs.mean" in file.keys()  # noqa: SIM118 - it is not a dict
        assert '"format": "whvi-model"' in file.metadata()["whvi"]


def test_saving_again_gives_the_same_content(path, tmp_path):
    load_model(path).save(tmp_path / "again")
    before, after = read_model_file(path), read_model_file(tmp_path / "again")
    assert after.document == before.document
    assert after.tensors.keys() == before.tensors.keys()
    assert all(torch.equal(after.tensors[name], t) for name, t in before.tensors.items())


# ---- damage -------------------------------------------------------------------------------------


def damage(payload, rng):
    at = rng.randrange(len(payload))
    until = min(len(payload), at + rng.randrange(1, 64))
    kind = rng.choice(["flip", "truncate", "zero", "splice", "append"])
    if kind == "flip":
        return payload[:at] + bytes([payload[at] ^ (1 << rng.randrange(8))]) + payload[at + 1 :]
    if kind == "truncate":
        return payload[:at]
    if kind == "zero":
        return payload[:at] + bytes(until - at) + payload[until:]
    if kind == "splice":
        return payload[:at] + payload[until:] + payload[at:until]
    return payload + rng.randbytes(rng.randrange(1, 64))


def test_damaged_files_are_refused(path, tmp_path):
    payload, rng, count = path.read_bytes(), random.Random(0), 0
    while count < NUM_DAMAGED:
        damaged = damage(payload, rng)
        if damaged == payload:
            continue
        count += 1
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ModelFileError):
            read_model_file(tmp_path / "damaged")


# ---- lies with a valid checksum -----------------------------------------------------------------


def put(document, keys, value):
    for key in keys[:-1]:
        document = document[key]
    document[keys[-1]] = value


LIES = {
    "another format": (("format",), "zip"),
    "a later version": (("format_version",), FORMAT_VERSION + 1),
    "an earlier version": (("format_version",), FORMAT_VERSION - 1),
    "no version": (("format_version",), "1"),
    "another class": (("estimator",), "subprocess.Popen"),
    "huge width": (("architecture", "hidden"), [2**62]),
    "negative width": (("architecture", "hidden"), [-8]),
    "other width": (("architecture", "hidden"), [16]),
    "no layers": (("architecture", "hidden"), []),
    "many layers": (("architecture", "hidden"), [8] * 100_000),
    "widths are text": (("architecture", "hidden"), "88"),
    "huge members": (("architecture", "members"), 2**40),
    "other members": (("architecture", "members"), 3),
    "huge outputs": (("architecture", "num_outputs"), 2**40),
    "other inputs": (("architecture", "in_features"), 5),
    "unknown posterior": (("architecture", "posterior"), "os.system"),
    "other posterior": (("architecture", "posterior"), "full"),
    "unknown likelihood": (("architecture", "likelihood"), "exec"),
    "other likelihood": (("architecture", "likelihood"), "student_t"),
    "extra field": (("architecture", "code"), "import os"),
    "no schema": (("schema",), None),
    "other columns": (("schema", "columns"), []),
    "column is text": (("schema", "columns"), ["a", "b"]),
    "other kind": (("schema", "columns", 0, "kind"), "code"),
    "category is a number": (("schema", "columns", 1, "categories"), 7),
    "other features": (("architecture", "features"), "code"),
    "tiled inputs": (("architecture", "features"), "sine"),
    "other target": (("schema", "target_kind"), "code"),
    "classes of numbers": (("classes",), {"dtype": "O", "values": ["a", "b"]}),
    "no history": (("training", "history"), {}),
    "unknown history": (("training", "history"), {"code": []}),
    "no targets": (("schema", "target_names"), []),
    "parameters are a list": (("parameters",), [1]),
    "name is a list": (("schema", "columns", 0, "name"), ["a"]),
    "name is half a character": (("schema", "columns", 0, "name"), "\ud800"),
    "names occur twice": (("schema", "columns", 1, "name"), "a"),
    "category is a list": (("schema", "columns", 1, "categories", 0), ["x"]),
    "category occurs twice": (("schema", "columns", 1, "categories"), ["x", "x"]),
    "fill is text": (("schema", "columns", 0, "fill"), "x"),
    "fill is far": (("schema", "columns", 0, "fill"), 1e300),
    "minimum above maximum": (("schema", "columns", 0, "minimum"), 1e300),
    "target is an object": (("schema", "target_names", 0), {}),
    "two targets": (("schema", "target_names"), ["target", "b"]),
    "no spread": (("spread",), 0.0),
    "wide spread": (("spread",), 1.5),
    "spread of truth": (("spread",), True),
    "wide gate": (("gate", "width"), 1e308),
    "narrow gate": (("gate", "width"), 1e-300),
    "far gate": (("gate", "near"), 1e308),
    "gate of truth": (("gate", "factor"), True),
    "summary is text": (("training", "training_summary"), "x"),
    "no members in the summary": (("training", "training_summary", "num_members"), 0),
    "seconds are text": (("training", "training_summary", "seconds"), "x"),
    "candidates are numbers": (("training", "candidates"), [1, 2]),
    "widths in the summary": (("training", "training_summary", "hidden_layer_sizes"), 7),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(content, tmp_path, name):
    keys, value = LIES[name]
    put(content.document, keys, value)
    (tmp_path / "lie").write_bytes(seal(content.tensors, content.document))
    with pytest.raises(ModelFileError):
        load_model(tmp_path / "lie")


@pytest.mark.parametrize(("difference", "cure"), [(-1, "fit and save"), (1, "a newer whvi")])
def test_other_versions_are_told_apart(content, tmp_path, difference, cure):
    content.document["format_version"] = FORMAT_VERSION + difference
    (tmp_path / "other").write_bytes(seal(content.tensors, content.document))
    with pytest.raises(ModelFileError, match=rf"version {FORMAT_VERSION + difference}, .*{cure}"):
        load_model(tmp_path / "other")


def change(tensors, name, value):
    tensors[name] = value


TENSOR_LIES = {
    "missing": lambda t: t.pop("inputs.mean"),
    "unknown": lambda t: change(t, "code.x", torch.zeros(2)),
    "unknown weight": lambda t: change(t, "model.x", torch.zeros(2)),
    "other shape": lambda t: change(t, "inputs.scale", torch.ones(1, 9, dtype=torch.float64)),
    "other type": lambda t: change(t, "inputs.scale", t["inputs.scale"].float()),
    "NaN": lambda t: t["inputs.mean"].fill_(torch.nan),
    "zero scale": lambda t: t["inputs.scale"].zero_(),
    "NaN noise": lambda t: t["likelihood.log_noise_variance"].fill_(torch.nan),
    "half": lambda t: change(
        t, "likelihood.target_mean", t["likelihood.target_mean"].to(torch.float16)
    ),
    "draws of no layer": lambda t: change(t, "functions.7.bias", torch.zeros(2, 8)),
    "missing draws": lambda t: t.pop("functions.0.g"),
    "fewer draws": lambda t: change(t, "functions.0.g", t["functions.0.g"][:, 1:].clone()),
    "infinite draws": lambda t: t["functions.1.weight"].fill_(torch.inf),
    "other outputs": lambda t: t.update(
        {"functions.1.weight": torch.zeros(2, 2, 5, 8), "functions.1.bias": torch.zeros(2, 5)}
    ),
    "zero unit": lambda t: t["likelihood.target_scale"].zero_(),
    "huge mean of targets": lambda t: t["likelihood.target_mean"].fill_(1e308),
    "huge unit": lambda t: t["likelihood.target_scale"].fill_(1e200),
    "no draws": lambda t: t.update(
        {k: v[:, :0] for k, v in t.items() if k in ("functions.0.g", "functions.1.weight")}
    ),
    "many displacements": lambda t: t.update(
        {
            k: v[:, :1].repeat(1, 2000, 1)
            for k, v in t.items()
            if k.startswith("linearized") and not k.endswith("mean")
        }
    ),
}


@pytest.mark.parametrize("name", TENSOR_LIES)
def test_untrue_tensors_are_refused(content, tmp_path, name):
    TENSOR_LIES[name](content.tensors)
    (tmp_path / "lie").write_bytes(seal(content.tensors, content.document))
    with pytest.raises(ModelFileError):
        load_model(tmp_path / "lie")


def test_a_key_that_occurs_twice_is_refused(content, tmp_path, monkeypatch):
    document = json.dumps(content.document)
    twice = document.replace('"named": true', '"named": true, "named": false')
    assert twice != document
    monkeypatch.setattr(json, "dumps", lambda *_, **__: twice)
    payload = seal(content.tensors, content.document)
    (tmp_path / "twice").write_bytes(payload)
    with pytest.raises(ModelFileError, match="a key occurs twice"):
        load_model(tmp_path / "twice")


def test_a_deep_document_is_refused(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "deep").write_bytes(len(deep).to_bytes(8, "little") + deep.encode())
    with pytest.raises(ModelFileError):
        load_model(tmp_path / "deep")


# ---- attacks ------------------------------------------------------------------------------------

WATCH = """
import sys
from whvi.errors import ModelFileError
from whvi.tabular import load_model
load_model(sys.argv[1])  # imports on first use run code, which is our own
seen = []
bad = ("pickle", "exec", "compile", "subprocess", "socket", "os.system", "os.posix_spawn")
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith(bad) else None)
for path in sys.argv[1:]:
    try:
        load_model(path)
    except ModelFileError:
        pass
sys.exit(f"saw {seen}" if seen else 0)
"""
PICKLE_BOMB = b"cos\nsystem\n(S'touch pwned'\ntR."


def test_reading_runs_no_code(path, content, tmp_path):
    bomb, code = tmp_path / "bomb", tmp_path / "code"
    bomb.write_bytes(PICKLE_BOMB)
    content.document["parameters"]["random_state"] = "__import__('os').system('touch pwned')"
    code.write_bytes(seal(content.tensors, content.document))
    subprocess.run([sys.executable, "-c", WATCH, path, bomb, code], check=True, cwd=tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_only_regular_files_are_read(tmp_path):
    for odd in (tmp_path, tmp_path / "absent", "/dev/zero", "a\0b"):
        with pytest.raises(ModelFileError):
            load_model(odd)


def test_a_link_is_replaced_not_followed(content, tmp_path):
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    write_model_file(link, content.tensors, content.document)
    assert victim.read_text() == "precious"


def test_a_write_that_fails_leaves_the_old_file(content, tmp_path, monkeypatch):
    target = tmp_path / "model"
    target.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ModelFileError, match="No space left"):
        write_model_file(target, content.tensors, content.document)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    with pytest.raises(ModelFileError, match="folder"):
        write_model_file(tmp_path, content.tensors, content.document)


def test_a_classifier_says_what_it_is(table, tmp_path):
    model = WHVIClassifier(**QUICK, random_state=0).fit(table, table["b"])
    model.save(tmp_path / "c")
    with pytest.raises(ModelFileError, match="not a WHVIRegressor"):
        WHVIRegressor.load(tmp_path / "c")
    content = read_model_file(tmp_path / "c")
    content.document["classes"]["values"] = ["x", "y", "z", "w"]
    write_model_file(tmp_path / "lie", content.tensors, content.document)
    with pytest.raises(ModelFileError, match="classes"):
        load_model(tmp_path / "lie")
