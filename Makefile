# Everything a newcomer needs: `make serve` and `make test`. Only Python 3.11 or newer, pip and make are assumed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help setup serve test test-slow test-engine bench scoreboard lint docs lock clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(VENV)/.ready ## make .venv with the foreword command and the development tools

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Foreword needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 " + "setup")'
	@echo "Setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

serve: setup ## fetch the small model and serve the gateway with the embedded engine
	$(BIN)/foreword serve --tokenizer-cache-enable-l0 --tokenizer-cache-enable-l1

test: setup ## the whole fast suite
	$(BIN)/pytest -n 2 -m "not slow and not engine"

test-slow: setup ## the full exactness matrix and the soak tests
	$(BIN)/pytest -n 2 -m "slow and not engine"

test-engine: setup ## against real vLLM workers, which it installs and starts
	$(BIN)/pytest -m engine

.venv-peers/.ready: requirements/peers.txt
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/peers.txt
	@touch $@

bench: setup .venv-peers/.ready ## the side-by-side table
	$(BIN)/python -m benchmarks

scoreboard: setup ## what other tools say of the same cases
	$(BIN)/python -m benchmarks.scoreboard

lint: setup ## style, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## check that the generated reference pages are current
	$(BIN)/python docs/generate.py --check

lock: ## compile requirements/dev.lock anew (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	  --custom-compile-command "make lock" --extra grpc --extra hashing --extra mistral --extra prices --extra redis --extra tui pyproject.toml requirements/dev.in -o requirements/dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	  --custom-compile-command "make lock" requirements/peers.in -o requirements/peers.txt

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-* .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
