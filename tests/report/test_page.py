"""The page: texts are escaped, nothing is loaded, and a browser renders it without errors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

import pandas as pd
from PIL import Image

from whvi.report import build_report
from whvi.report.explanations import Table
from whvi.report.page import render
from whvi.report.pictures import Picture
from whvi.tabular import WHVIClassifier, WHVIRegressor

CHROMIUM = next((p for n in ("chromium", "chromium-browser") if (p := shutil.which(n))), None)
QUICK = {"max_iter": 30, "n_members": 2, "hidden_layer_sizes": (8,), "random_state": 0}
VOID = {"meta", "link", "br"}
HOSTILE = "\"'><script>alert(1)</script><img src=http://127.0.0.1:9/x onerror=alert(1)> {{ 7 * 7 }}"


def frame(num_rows, seed):
    generator = np.random.default_rng(seed)
    x = pd.DataFrame(
        generator.normal(size=(num_rows, 2)), columns=["width", "$h <script>alert(1)</script>$"]
    )
    x["$h_ script alert(1)  script_$"] = 1.0 * generator.integers(0, 9, size=num_rows)
    x["town"] = generator.choice(["Oslo", "Rome & co"], size=num_rows)
    y = x["width"] + (x["town"] == "Oslo") + 0.2 * generator.normal(size=num_rows)
    return x, y.rename("price")


@pytest.fixture(scope="module", params=["regression", "classification"])
def page(request):
    torch.set_num_threads(1)
    (x, y), (x_test, y_test) = frame(80, 0), frame(60, 1)
    x_test.loc[0, "town"] = "Nowhere"
    if request.param == "regression":
        model = WHVIRegressor(likelihood="gaussian", **QUICK).fit(x, y)
    else:
        y, y_test = (y > 0.5).map({True: "dear", False: "cheap"}), y_test > 0.5
        y_test = y_test.map({True: "dear", False: "cheap"})
        model = WHVIClassifier(**QUICK).fit(x, y.rename("price"))
    return build_report(model, x_test, y_test, source="test.csv")


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects ids and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.addresses, self.tags, self.labels = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "action", "data"):
                self.addresses.append(value)
            if name == "aria-label":
                self.labels.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_self_contained(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert "script" not in reader.tags
    assert len(reader.labels) == reader.tags.count("svg") >= 6  # every picture has a text
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_page_says_what_it_should(page):
    assert "How well is price predicted?" in page
    assert "test.csv: 60 rows, 4 columns" in page
    assert "Rome &amp; co" in page
    assert "$h &lt;script&gt;alert(1)&lt;/script&gt;$" in page
    assert "Nowhere" in page  # a category that training did not have
    assert re.search(r"(cover|correct for) [\d.]+ % of 60 test rows", page)
    assert "#010203" not in page  # all ink is the page's


def test_every_text_is_escaped():
    """A hostile text in every place that the template fills."""
    drawn = [Picture(HOSTILE, "<svg></svg>", HOSTILE)]
    names = ("title", "source", "version")
    told = Table(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)])
    lists = ("warnings", "sentences")
    tables = ("tiles", "scores", "columns", "card")
    page = render(
        **dict.fromkeys(names, HOSTILE),
        **{name: [HOSTILE] for name in lists},
        **{name: [(HOSTILE, HOSTILE)] for name in tables},
        **dict.fromkeys(("pictures", "effects", "training"), drawn),
        importance=told,
        rows=[told],
    )
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert not {"script", "img"} & set(reader.tags)
    assert all(address.startswith("data:") for address in reader.addresses)
    assert reader.labels == [f"{HOSTILE}. {HOSTILE}"] * 3
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 20
    assert "{{ 7 * 7 }}" in page  # texts are not templates


def titles(page):
    return re.findall(r"Effect of [a-z0-9]+", page)


def test_the_most_important_columns_are_shown_wherever_they_stand():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(80, 15)), columns=[f"c{k}" for k in range(15)])
    x["empty"], x["c3"] = np.nan, x["c3"].where(rng.random(80) > 0.2)
    model = WHVIRegressor(likelihood="gaussian", **{**QUICK, "max_iter": 300})
    page = build_report(model.fit(x, 5 * x["c14"]), x, 5 * x["c14"])
    assert titles(page)[0] == "Effect of c14"
    assert len(set(titles(page))) == 12
    assert "The 12 most important of 16 columns" in page
    table = page[page.index("Importance of the columns") : page.index("Effect of")]
    assert table.count("<tr>") == 1 + 12
    assert re.search("<td>(.*?)</td>", table)[1] == "c14"


def test_every_class_has_effects():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(90, 2)), columns=["a", "b"])
    y = pd.Series(np.digitize(x["a"], [-0.5, 0.5])).map({0: "low", 1: "mid", 2: "high"})
    page = build_report(WHVIClassifier(**QUICK).fit(x, y), x, y)
    shown = re.findall("<h3>Effect of (.)</h3>", page)
    assert len(shown) == 6  # two columns on three classes
    assert shown[0] == "a"


def test_rows_are_explained():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.normal(size=(80, 10)), columns=[f"c{k}" for k in range(10)])
    x["town"] = rng.choice(["Oslo", "Rome"], size=80)
    y = 5 * x["c3"]
    y[17] = 1000.0
    model = WHVIRegressor(likelihood="gaussian", **QUICK).fit(x.drop(index=17), y.drop(index=17))
    page = build_report(model, x, y)
    why = page[page.index("Why some rows") : page.index("<h2>Data")]
    heads = re.findall("<h3>(.*?)</h3>", why)
    assert [head.split(": ")[1] for head in heads][:2] == ["an ordinary one", "the least expected"]
    assert heads[1].startswith("Row 17")
    assert "true value: 1,000." in why
    assert "3 other columns" in why
    base = re.search("of this table: ([-.0-9]+);", why)[1]
    cells = re.findall("<td.*?>(.*?)</td>", why)
    moves = [float(cell.replace("−", "-")) for cell in cells[2:36:4]]  # of the first row
    predicted = re.search("Predicted c3: ([-.0-9]+);", why)[1]
    assert float(base) + sum(moves) == pytest.approx(float(predicted), abs=0.01)


def test_hostile_names_of_table_target_and_classes():
    x, y = frame(40, 0)
    y = (y > 0.5).map({True: HOSTILE, False: "cheap"}).rename(HOSTILE)
    page = build_report(WHVIClassifier(**QUICK).fit(x, y), x, y, source=HOSTILE)
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert not {"script", "img"} & set(reader.tags)
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert "How well is &#34;&#39;&gt;&lt;script&gt;" in page


needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"
)


def show(page, folder):
    """Render a page; return the picture, messages of the console, and what the page asked for."""
    path, picture, network = (folder / name for name in ("page.html", "page.png", "net.json"))
    path.write_text(page, encoding="utf-8")
    options = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--enable-logging=stderr", "--v=0", "--window-size=900,1600"),
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={network}",
        f"--screenshot={picture}",
    ]
    result = subprocess.run(
        [CHROMIUM, *options, path.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    events = [event.get("params", {}) for event in json.loads(network.read_text())["events"]]
    asked = {  # the browser's own requests have no origin
        event["url"]
        for event in events
        if event.get("initiator", "not an origin") != "not an origin"
        and event.get("url", "").startswith("http")
    }
    return picture, [line for line in result.stderr.splitlines() if "CONSOLE" in line], asked


@needs_chromium
def test_a_browser_shows_it(page, tmp_path):
    picture, messages, asked = show(page, tmp_path)
    assert messages == []  # no error, nothing blocked
    assert asked == set()
    with Image.open(picture) as image:
        colors = image.convert("RGB").getcolors(maxcolors=1 << 24)
        assert image.size == (900, 1600)
    assert len(colors) > 200  # text and graphics, not a blank page


@needs_chromium
def test_a_request_would_be_seen(tmp_path):
    address = "http://127.0.0.1:9/x.png"
    _, messages, asked = show(f"<img src='{address}'><script>throw Error()</script>", tmp_path)
    assert asked == {address}
    assert messages
