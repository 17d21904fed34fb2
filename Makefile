# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test lint types tests format clean

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /: /' | sort

setup: $(STAMP)  ## create .venv and install everything at the tested versions

$(STAMP): setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $(STAMP)

quickstart: setup  ## calibrate, train all three stages on FFNN, measure, print the table
	$(BIN)/python scripts/train.py experiment=quickstart logger=wandb

test: setup lint types tests  ## lint, type check and run the tests

lint: setup
	$(BIN)/ruff format --check doppler envs scripts configs tests
	$(BIN)/ruff check doppler envs scripts configs tests

types: setup
	$(BIN)/mypy

tests: setup
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

format: setup  ## rewrite the files in the house style
	$(BIN)/ruff format doppler envs scripts configs tests
	$(BIN)/ruff check --fix doppler envs scripts configs tests

clean:  ## remove the environment and caches, keep runs/
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
