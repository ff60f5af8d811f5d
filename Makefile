# Two commands are all a newcomer needs: `make figures` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup figures test lint test-slow bench results sanitize clean

setup: $(STAMP)

# The stamp makes a repeat run a matter of milliseconds; it is older than its
# inputs exactly when something has to be installed again.
$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/headscape/attention/native/*.?pp)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

figures: setup
	$(BIN)/headscape figures

test: setup lint
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test-slow: setup
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python -m benchmarks.run

results: setup
	$(BIN)/python -m benchmarks.results

sanitize: setup
	benchmarks/sanitize.sh $(BIN)/python

clean:
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache
