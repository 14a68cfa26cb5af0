"""Small tables, written as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

QUICK = ["--steps", "30", "--members", "1", "--hidden", "8", "--quiet"]


def rows(num_rows: int, seed: int) -> list[dict[str, object]]:
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(num_rows):
        size, age, town = generator.normal(), generator.uniform(0, 9), generator.choice(["A", "B"])
        price = 3 * size - age + 2 * (town == "A") + 0.3 * generator.normal()
        kind = "dear" if price > -3 else "cheap"
        found.append({"size": size, "age": age, "town": town, "price": price, "kind": kind})
    return found


def write(path: Path, columns: list[str], table: list[dict[str, object]]) -> str:
    lines = [",".join(columns), *(",".join(str(row[name]) for name in columns) for row in table)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)
