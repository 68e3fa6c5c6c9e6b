# Everything that a checkout needs, in one virtual environment under .venv.  `make` lists the targets.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet -c constraints.txt
PACKAGE := jupyter_gpugate
SOURCES_OF_VENV := pyproject.toml constraints.txt $(PACKAGE)/_version.py
# What of it runs inside a kernel's environment, however old that is.
OLDEST := 3.9
KERNEL_SIDE := $(wildcard $(PACKAGE)/*.py) $(PACKAGE)/client $(PACKAGE)/core $(PACKAGE)/faces \
	$(PACKAGE)/notebook $(PACKAGE)/programs $(PACKAGE)/terminal

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench scorecard soak behaviours docs clean system chromium

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

demo: $(VENV)/demo.stamp ## see two evaluations that do not fit at once; no GPU needed
	$(PY) notebooks/demo.py

# Compiled once: servers, kernels and runs of the tests write no compiled files of their own.
test: system chromium $(VENV)/test.stamp lint ## lint, types and every test, on CPUs alone
	$(PY) -m compileall -q $(PACKAGE)
	$(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/test.stamp ## ruff, mypy, sizes, and whether the kernel's side still runs on old Pythons
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) tests/sizes.py
	$(VENV)/bin/vermin --quiet --violations --no-tips -t=$(OLDEST)- $(KERNEL_SIDE)

format: $(VENV)/test.stamp ## format the code with ruff
	$(PY) -m ruff check --fix
	$(PY) -m ruff format

bench: $(VENV)/test.stamp ## the cost of the gate, compared with similar programs
	$(PY) -m tests.benchmarks

scorecard: $(VENV)/test.stamp ## simulate whole days of runs, beside other policies; TRACES=folder replays those
	$(PY) -m tests.scorecard $(if $(TRACES),--traces $(TRACES))

soak: $(VENV)/test.stamp ## run the long form of the tests that have one: more seeds, more kills
	$(PY) -m pytest -n 2 --dist loadfile --soak -m soak --timeout 7200

behaviours: ## list the rows of docs/behaviours.md that no test proves yet
	@$(PYTHON) tests/behaviours.py

docs: $(VENV)/docs.stamp ## docs/ as pages, under build/docs
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

clean: ## remove everything that make has created
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# -- the environment: made when it is missing, filled again when what it is made from has changed ------

$(PY): | system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "constraints.txt needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(SOURCES_OF_VENV) | $(PY)
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/test.stamp: $(SOURCES_OF_VENV) | $(PY)
	$(PIP) -e '.[test,lint]'
	@touch $@

$(VENV)/docs.stamp: $(SOURCES_OF_VENV) | $(PY)
	$(PIP) -e '.[docs]'
	@touch $@

# The tests compile a stand-in for the driver library; Debian ships Python without its venv module.
system:
	@missing=; \
	command -v cc >/dev/null || missing="gcc libc6-dev"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
		echo "installing what is missing:" $$missing; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install -y --no-install-recommends $$missing; \
	else \
		echo "please install:" $$missing; exit 1; \
	fi

# The tests of the pages drive a browser; without one they say so and are skipped.
chromium:
	@for name in chromium chromium-browser google-chrome; do \
		if command -v $$name >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
		echo "installing a browser for the tests of the pages"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core && exit 0; \
	fi; \
	echo "no chromium here: the tests of the pages will be skipped"
