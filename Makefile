# Every recipe bootstraps what it needs from python3, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := .tools/bin/uv
# compiled modules are kept: timm alone takes 15 s to import without them
unexport PYTHONDONTWRITEBYTECODE

export UV_LINK_MODE ?= copy

# extras of requirements.lock: all but the experiment trackers, which bring servers of their own
LOCKED := train diffusion segment onnx app formats ray dev

.PHONY: demo test test-slow test-peers test-browser check fmt docs lock install clean equation

install: $(VENV)/.installed

$(UV):
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv

$(VENV)/.installed: requirements.lock pyproject.toml | $(UV)
	test -d $(VENV) || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip sync --quiet requirements.lock
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install --quiet --no-deps -e .
	touch $@

lock: | $(UV)
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	  $(foreach extra,$(LOCKED),--extra $(extra)) \
	  --no-emit-index-url --no-emit-find-links --no-header pyproject.toml -o requirements.lock

demo: install
	$(BIN)/python tools/demo.py

# one process per core, each with one thread; with one core plain pytest
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, os.cpu_count() or 1))")

test: install
	OMP_NUM_THREADS=1 $(BIN)/pytest $(if $(filter 1,$(WORKERS)),,-n $(WORKERS) --dist worksteal)

test-slow: install
	$(BIN)/pytest -m slow

test-browser: install
	COUNTERLENS_BROWSER=required $(BIN)/pytest tests/journeys/test_browser.py tests/journeys/test_app_browser.py

check: install
	$(BIN)/ruff format --check src tests tools benchmarks examples
	$(BIN)/ruff check src tests tools benchmarks examples
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/python tools/equations.py --verify
	$(BIN)/python tools/options.py --verify

fmt: install
	$(BIN)/ruff format src tests tools benchmarks examples
	$(BIN)/ruff check --fix src tests tools benchmarks examples

docs: install
	$(BIN)/python tools/equations.py --write docs/equations.md
	$(BIN)/python tools/options.py --write docs/reference/options.md

equation: install
	$(BIN)/python tools/equations.py $(KEY)

bench-%: install
	$(BIN)/python benchmarks/bench_$*.py $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-peers .tools .cache build dist

$(VENV)-peers/.installed: requirements-peers.lock | $(UV)
	test -d $(VENV)-peers || $(UV) venv --quiet --python $(PYTHON) $(VENV)-peers
	VIRTUAL_ENV=$(CURDIR)/$(VENV)-peers $(UV) pip sync --quiet requirements-peers.lock
	touch $@

test-peers: $(VENV)-peers/.installed
	PYTHONPATH=src $(VENV)-peers/bin/python -m pytest -m peers tests/peers

bench-attack: $(VENV)-peers/.installed
	PYTHONPATH=src $(VENV)-peers/bin/python benchmarks/bench_attack.py $(ARGS)
