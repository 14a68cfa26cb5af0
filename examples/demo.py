"""The main job on an embedded data set, beside other models: `make demo`, the same as `whvi demo`.

Writes model, predictions and report into demo_output/.

    python examples/demo.py [--output FOLDER] [--quick]
"""

from __future__ import annotations

import argparse

from reproduction.demo import run_demo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="demo_output")
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    options = parser.parse_args()
    run_demo(options.output, quick=options.quick)


if __name__ == "__main__":
    main()
