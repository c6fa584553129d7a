# `make demo` and `make test` each set up all they need on a fresh machine.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
# What is measured against a bound in seconds runs alone; the rest waits more than it works and runs two at a time.
ALONE := $(wildcard tests/integration/test_limits_*.py) tests/integration/launcher/test_hangs.py
APART := $(filter-out $(ALONE),$(wildcard tests/integration/test_*.py tests/integration/launcher/test_*.py))

.PHONY: setup demo lint types test unit integration test-all soak bench compat clean

setup:
	@scripts/setup.sh

demo: setup
	@$(BIN)/nvrx-chain demo --python .venv-peers/bin/python $(DEMO)

lint: setup
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@shellcheck scripts/*.sh .ci/run sbatch_templates/*.sbatch

types: setup
	@$(BIN)/mypy | tail -n 5

unit: setup
	@$(BIN)/pytest tests/unit -n 2

integration: setup
	@$(BIN)/pytest $(APART) -m "integration and not slow" -n 2 --dist loadfile
	@$(BIN)/pytest $(ALONE) -m "integration and not slow"

test: lint types unit integration

test-all: setup
	@$(BIN)/python -m tests.verify $(VERIFY)

bench: setup
	@$(BIN)/python -m tests.bench
	@$(BIN)/python -m tests.watch_bench

# The demo on other versions of Slurm, in Debian trees that debootstrap makes from apt's own mirror.
compat: setup
	@command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qqy --no-install-recommends debootstrap; }
	@$(BIN)/python -m tests.compat $(COMPAT)

soak: setup
	@$(BIN)/python -m tests.soak
	@$(BIN)/python -m tests.watch_soak

clean:
	rm -rf .venv .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
