# Every target creates .venv and installs what it needs, from nothing but Python 3 and make.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
KERNEL_SOURCES := $(wildcard csrc/*.c csrc/*.h)
TEST_JOBS ?= 2

.PHONY: setup browser demo table1 figure1 figure2 gaps ood tables clinc cifar transforms vae test clients check format bench nightly sanitize clean

$(STAMP): pyproject.toml setup.py constraints.txt $(KERNEL_SOURCES)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

setup: $(STAMP)

# a browser for the tests of the report, where Debian's packages may be installed; else they skip
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get install -y -qq chromium >/dev/null 2>&1; } || true

demo: $(STAMP)
	$(PY) -m reproduction demo

# the paper's experiments: QUICK=1 for a small part, ARGS for options, such as ARGS="--jobs 2"
table1 figure1 figure2 gaps ood tables clinc cifar transforms vae: $(STAMP)
	$(PY) -m reproduction $@ $(if $(QUICK),--quick) $(ARGS)

test: $(STAMP) browser
	$(PY) -m pytest -n $(TEST_JOBS) --dist worksteal

# packages that layers are used with, at small size; `make test` skips those that are absent
clients: $(STAMP)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[clients,dev]"
	$(PY) -m pytest -n $(TEST_JOBS) --dist worksteal tests/clients tests/_kernel/test_triton.py

check: $(STAMP) browser
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m pytest -n $(TEST_JOBS) --dist worksteal -x

format: $(STAMP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

# the packages to compare with; a benchmark says so if one is absent
bench: $(STAMP)
	-$(PY) -m pip install --quiet --no-deps hadamard-transform bayesian-torch
	$(PY) -m benchmarks $(BENCH_OPTIONS)

nightly: $(STAMP) browser
	$(PY) -m pytest -n $(TEST_JOBS) --dist worksteal -m "nightly or not nightly"

sanitize: $(STAMP)
	$(PY) tests/sanitize/run.py

clean:
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete
