# `make demo` and `make test` each set up all they need on a fresh machine.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo lint types test unit integration test-all soak bench clean

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
	@$(BIN)/pytest tests/unit

integration: setup
	@$(BIN)/pytest tests/integration -m "integration and not slow"

test: lint types unit integration

test-all: setup
	@$(BIN)/python -m tests.verify $(VERIFY)

bench: setup
	@$(BIN)/python -m tests.bench

soak: setup
	@$(BIN)/python -m tests.soak

clean:
	rm -rf .venv .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
