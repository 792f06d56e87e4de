# Every task of the project; `make` alone lists them. VENV= names another place for the environment.
VENV ?= .venv
PORT ?= 7860
PYTHON ?= python3
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
.PHONY: help app install dev chromium test check format bench docs

help: ## List the tasks
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

app: install ## Serve the page on 127.0.0.1:7860 (PORT= changes it)
	$(BIN)/vizattn app --port $(PORT)

install: $(VENV)/.installed ## Make the environment that runs vizattn

dev: $(VENV)/.installed-dev ## The same with everything that tests and checks need

# torch and torchvision are named together so that pip resolves a matching pair.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@ $(VENV)/.installed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Debian's and Ubuntu's own Chromium; where it cannot be had the browser tests say so.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq chromium fonts-noto-cjk; \
	  else echo "No Chromium: the browser tests will be skipped. Install it to run them."; fi; \
	} || echo "Chromium could not be installed."

test: dev chromium ## Run all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

check: dev ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: dev ## Put the code into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: dev chromium ## Measure capture, rollout, methods, what others do, and the page
	$(BIN)/pip install --quiet -e '.[bench]'
	$(BIN)/python benchmarks/rollout.py
	$(BIN)/python benchmarks/methods.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/many.py
	$(BIN)/python benchmarks/survey.py
	$(BIN)/python benchmarks/page.py

docs: dev ## Make the README's pictures again
	$(BIN)/python scripts/readme_pictures.py
