# Two commands: `make audit` installs everything and runs the main job, `make test` installs and tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# of speed, minutes in all; the others take hours, or measure findings: python -m benchmarks.NAME --help
BENCHMARKS = gate overhead dp_sgd dp_distillation simulation engines worlds inversion accounting

.PHONY: audit smoke test nightly lint types docs benchmarks lock clean help

audit: $(VENV)/.runtime          ## install, then audit FedFed on real digits to a report
	$(BIN)/python -m privdd.audit algo=fedfed $(ARGS) || [ $$? -eq 2 ]  # 2: a stated limit was broken

smoke: $(VENV)/.runtime          ## the same in under a minute
	$(BIN)/python -m privdd.audit algo=fedfed preset=smoke $(ARGS) || [ $$? -eq 2 ]

test: $(VENV)/.dev               ## install with the test tools, then run the tests, bare first; PRIVDD_TEST_ORDER=SEED shuffles them
	sh tools/run_tests.sh $(BIN)/python "not nightly" $(ARGS)

nightly: $(VENV)/.dev            ## hours: all tests, fuzzing, kills, all profiles at both presets, the self-test
	sh tools/run_tests.sh $(BIN)/python "nightly or not nightly" $(ARGS)
	for p in smoke default; do $(BIN)/python -m benchmarks.presets --preset $$p --timeout 7200 || exit 1; done
	$(BIN)/python -m tests.fuzzing.run
	$(BIN)/python -m tests.system.random_kills
	$(BIN)/python -m tests.system.command_kills
	$(BIN)/python -m privdd.selftest

lint: $(VENV)/.dev               ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check privdd attacks

types: $(VENV)/.dev              ## static types
	$(BIN)/mypy

docs: $(VENV)/.dev               ## the documentation, into site/
	$(BIN)/mkdocs build --strict --quiet

benchmarks: $(VENV)/.dev         ## speed against references (fails beyond a margin), then every benchmark of speed
	for b in $(BENCHMARKS); do echo "== $$b"; $(BIN)/python -m benchmarks.$$b || exit 1; done

$(VENV)/.runtime: pyproject.toml constraints.txt $(wildcard locks/*)
	sh tools/environment.sh $(PYTHON) $(VENV)
	sh tools/install.sh $(BIN)/python runtime
	sh tools/install.sh $(BIN)/python weights
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(wildcard locks/*)
	sh tools/environment.sh $(PYTHON) $(VENV)
	sh tools/install.sh $(BIN)/python dev
	touch $@

lock: $(VENV)/.dev               ## write the hash locks of this platform anew, after a change of constraints.txt
	$(BIN)/python tools/lock.py

clean:                           ## remove the environment and build products
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache

help:                            ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/'
