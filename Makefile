# Everything from a fresh machine: `make campaign` shows it working, `make test` proves it.
#   make campaign MODEL=name BASE_URL=http://localhost:8000/v1 ARGS='--max-requests 48'
#   make campaign PYTHON=python3 VENV=   runs with what is already installed

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV ?= .venv
MODEL ?=
BASE_URL ?=
NAME ?= quickstart-$(shell date +%Y%m%d-%H%M%S)
ARGS ?=

ifeq ($(strip $(VENV)),)
BIN := $(dir $(shell command -v $(PYTHON)))
RUN := $(PYTHON)
STAMP :=
DEV_STAMP :=
else
BIN := $(VENV)/bin/
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
endif

# No GPU: torch's CPU build from PyTorch's own index where it can be reached, else whatever pip finds.
CUDA := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: \([0-9]*\).*/\1/p' | head -n 1)
EXTRA := $(if $(filter 12,$(CUDA)),cuda12,$(if $(CUDA),cuda13,))

TRAIN ?= small
DEMO ?= runs/train-demo
DEMO_RUN ?= benchmarks/demo
DEMO_NAME := demo-$(shell date +%Y%m%d-%H%M%S)
PIECE_S ?= 480
SEED ?= 0
ABLATION ?=
# Files begin in the order of tests/conftest.py, not by how many tests they hold.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
SOURCES := agent benchmarks configs kernelbench rewards rl sandbox warpsmith.py
ALONE := $(shell grep -rl 'mark\.alone' tests --include='test_*.py')

.PHONY: help install campaign train-demo demo test test-full test-gpu lint clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

install: $(STAMP) ## Create the virtual environment and install what fits the driver

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) or sys.platform != "linux")' \
	  || { echo "warpsmith needs Linux and Python 3.11 or newer; found $$($(PYTHON) --version 2>&1) on $$(uname -s): set PYTHON=..."; exit 1; }
	@command -v g++ >/dev/null || { echo "warpsmith needs g++: install your distribution's compiler package (Debian: apt-get install g++)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[report$(if $(EXTRA),$(COMMA)$(EXTRA))]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[dev,train$(if $(EXTRA),,$(COMMA)cuda13)]'
	@touch $@

COMMA := ,

campaign: $(STAMP) ## Run the quickstart campaign; MODEL=name BASE_URL=... asks a model
	PATH="$(BIN):$$PATH" $(if $(BASE_URL),OPENAI_BASE_URL="$(BASE_URL)") $(RUN) warpsmith.py optimize \
	  --config quickstart --name $(NAME) $(if $(MODEL),--model "$(MODEL)") $(ARGS)

TRAIN_STAMP := $(if $(STAMP),$(VENV)/.installed-train)

$(VENV)/.installed-train: $(VENV)/.installed
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[train$(if $(EXTRA),$(COMMA)$(EXTRA))]'
	@touch $@

# Every step leaves a folder or a run that the next call goes on from; run it again after a stop.
train-demo: $(TRAIN_STAMP) ## Proof of the loop: data, SFT, self-supervised, RL, evaluation
	mkdir -p $(DEMO)
	PATH="$(BIN):$$PATH" $(RUN) benchmarks/train_demo.py --config $(TRAIN) --to $(DEMO) \
	  --piece-s $(PIECE_S) --seed $(SEED) $(if $(ABLATION),--ablation)

# DEMO_RUN is a recorded run's folder; its decisions are made again from its journal, into a new run.
demo: $(STAMP) ## Replay a recorded H200 campaign (or DEMO_RUN) without GPU, key or network; open its report
	$(RUN) warpsmith.py replay $(DEMO_RUN) --name $(DEMO_NAME)
	$(RUN) warpsmith.py export $(DEMO_NAME) --to runs/$(DEMO_NAME)/kernels
	$(RUN) warpsmith.py report $(DEMO_NAME)
	-@$(RUN) -m webbrowser "file://$(CURDIR)/runs/$(DEMO_NAME)/report.html" >/dev/null 2>&1

# Where no bytecode is to be written, as in many containers, every interpreter compiled all anew.
test: lint ## Lint, types and tests, on 2 cores without a GPU
	-$(RUN) -m compileall -q -j 2 $(SOURCES)
	PATH="$(BIN):$$PATH" $(RUN) -m pytest -m 'not slow and not gpu and not alone' $(PARALLEL)
	PATH="$(BIN):$$PATH" $(RUN) -m pytest $(ALONE) -m 'alone and not slow and not gpu'

lint: $(DEV_STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy -n 2

test-full: $(DEV_STAMP) ## The long suites as well
	PATH="$(BIN):$$PATH" $(RUN) -m pytest -m 'not gpu and not alone' $(PARALLEL)
	PATH="$(BIN):$$PATH" $(RUN) -m pytest $(ALONE) -m 'alone and not gpu'

test-gpu: ## GPU tests with whatever interpreter is given (PYTHON=...)
	$(PYTHON) -m pytest tests -m gpu -p no:cacheprovider

clean: ## Remove the virtual environment and caches; runs stay
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
