# Two commands are all a newcomer needs: `make figures` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

# pip does not compile the 8,000 modules it installs (26 s), so Python must be free to keep the few
# that it compiles when they are first imported.
unexport PYTHONDONTWRITEBYTECODE

# Requirements by key of pyproject.toml's [project]: $(call listed,['dependencies']).
listed = $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']$(1))")

.PHONY: setup dependencies package figures test lint test-slow test-browser test-pretrained docs
.PHONY: wheel bench results sanitize fuzz clean

# Every stamp is older than its inputs exactly when something has to be installed again, so a repeat
# takes milliseconds.
setup: $(VENV)/.installed

# The kernel compiles on one core while torch is unpacked on another.
$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(wildcard src/headscape/kernels/native/*.?pp)
	$(PYTHON) -m venv $(VENV)
	$(MAKE) --no-print-directory --jobs 2 dependencies package
	touch $@

dependencies:
	$(PIP) $(call listed,['dependencies'])

package:
	$(PIP) --no-deps --editable .

# The tests build the site too.
$(VENV)/.tested: $(VENV)/.installed $(VENV)/.documented
	$(PIP) $(call listed,['optional-dependencies']['test'])
	touch $@

$(VENV)/.documented: $(VENV)/.installed
	$(PIP) $(call listed,['optional-dependencies']['docs'])
	touch $@

figures: setup
	$(BIN)/headscape figures

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test-slow: $(VENV)/.tested
	$(BIN)/python -m pytest -m slow

test-browser: $(VENV)/.tested
	$(BIN)/python -m pytest -m browser

# Fetches about 570 MB of published weights once.
test-pretrained: $(VENV)/.tested
	$(PIP) $(call listed,['optional-dependencies']['gguf']) "onnx>=1.17"
	$(BIN)/python -m pytest -m pretrained tests/pretrained

docs: $(VENV)/.documented
	$(BIN)/python -m docs.site.build build/site

wheel: $(VENV)/.tested
	$(BIN)/python -m build --outdir dist

bench: setup
	$(PIP) $(call listed,['optional-dependencies']['bench'])
	$(BIN)/python -m benchmarks.run

results: setup
	$(BIN)/python -m benchmarks.results

sanitize: $(VENV)/.tested
	benchmarks/sanitize.sh $(BIN)/python

fuzz: $(VENV)/.tested
	$(PIP) $(call listed,['optional-dependencies']['fuzz'])
	PYTHONPATH=tests $(BIN)/python -m fuzz.run
	PYTHONPATH=tests $(BIN)/python -m fuzz.kernels
	PYTHONPATH=tests $(BIN)/python -m fuzz.captures
	PYTHONPATH=tests $(BIN)/python -m fuzz.published
	PYTHONPATH=tests $(BIN)/python -m fuzz.models
	PYTHONPATH=tests $(BIN)/python -m fuzz.viewer_messages
	if command -v npm; then npm --prefix web ci --ignore-scripts && npm --prefix web run fuzz; fi

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
