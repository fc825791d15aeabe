# `make demo`, `make test` and `make check` set up .venv by themselves and use it again.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check clean

demo: .venv/ready
	$(BIN)/burn demo

test: .venv/ready
	$(BIN)/pytest -n 2

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "burn needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv dist .ruff_cache
