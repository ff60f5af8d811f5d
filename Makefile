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

.PHONY: setup dependencies package figures test lint ci docs notebooks wheel bench results sanitize fuzz clean
.PHONY: test-processes test-compiled test-kills test-notebooks test-browser test-web test-fuzz
.PHONY: test-slow test-pretrained

# Fuzzers whose inputs are numbered, and how CI runs them; the kernels' budget of rounding is missed
# about once in 1,000 inputs (docs/reliability.md), and in none of the first 300.
SEEDED := models captures published viewer_messages
SHORT  := --inputs 2000 --seconds 40
SHORT_KERNELS := --inputs 300

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

# All that CI runs: test, and the seven targets below it.
ci:
	.ci/run

test-processes: $(VENV)/.tested
	$(BIN)/python -m pytest -m processes

test-compiled: $(VENV)/.tested
	$(BIN)/python -m pytest -m compiled -n 2 --dist worksteal

test-kills: $(VENV)/.tested
	$(BIN)/python -m pytest -m kills -n 2 --dist worksteal

# Fetches 93 MB of published weights once, for the first three notebooks.
test-notebooks: $(VENV)/.tested
	$(BIN)/python -m pytest -m notebooks -n 2 --dist worksteal

test-browser: $(VENV)/.tested web/node_modules
	$(BIN)/python -m pytest -m browser

# What checks and builds the viewer; a browser test reads axe-core from it. Not `npm ci`: a registry
# may lack the packages of other platforms, which that insists on.
web/node_modules: web/package.json
	if command -v npm > /dev/null; then \
	cd web && npm install --no-save --ignore-scripts --no-audit --no-fund && touch node_modules; fi

test-web: web/node_modules
	if command -v npm > /dev/null; then cd web && npm run check && npm test && npm run fuzz -- 2000; \
	else echo "npm is not installed: the viewer's TypeScript and kernel are not tested"; fi

# The fuzzers of `make fuzz` that need nothing but the test tools, for at most 40 s a check.
test-fuzz: $(VENV)/.tested web/node_modules
	PYTHONPATH=tests $(BIN)/python -m fuzz.kernels $(SHORT_KERNELS) || failed=kernels; \
	for name in $(SEEDED); do \
	PYTHONPATH=tests $(BIN)/python -m fuzz.$$name $(SHORT) || failed="$$failed $$name"; done; \
	test -z "$$failed" || { echo "findings:$$failed"; exit 1; }

test-slow: $(VENV)/.tested
	$(BIN)/python -m pytest -m slow

# Fetches about 570 MB of published weights once.
test-pretrained: $(VENV)/.tested
	$(PIP) $(call listed,['optional-dependencies']['gguf']) "onnx>=1.17"
	$(BIN)/python -m pytest -m pretrained tests/pretrained

# Runs the notebooks again and stores what they show.
notebooks: $(VENV)/.tested
	$(BIN)/headscape fetch smollm2
	$(BIN)/python -m docs.site.notebook_outputs

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

fuzz: $(VENV)/.tested web/node_modules
	$(PIP) $(call listed,['optional-dependencies']['fuzz'])
	PYTHONPATH=tests $(BIN)/python -m fuzz.run
	$(MAKE) test-fuzz SHORT= SHORT_KERNELS=
	if command -v npm > /dev/null; then npm --prefix web run fuzz; fi

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
