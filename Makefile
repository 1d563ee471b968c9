# Every target sets up what it needs: a virtual environment in .venv, made again only when pyproject.toml changes.
# `make test TESTS=tests/rules ARGS="-k lease"` runs a part; `make PYTHON=python3.13 test` chooses the interpreter.

.DEFAULT_GOAL := help
.PHONY: help demo test check fix contract simulate crash bench bench-peers bench-long docs nightly build clean setup

# The tests start hundreds of processes, and each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

PY := .venv/bin/python
# One seed for every run of a change, so that a red test is red again; `make nightly` takes a new one and prints it.
SEED ?= 1
ARGS ?=
TESTS ?= tests
# More than half of a test is waiting, for a disk, a clock or a deadline.
WORKERS ?= $(shell $(PY) -c 'import os; print((os.cpu_count() or 2) * 5 // 2)')
PYTEST = $(PY) -m pytest -n $(WORKERS) --dist worksteal -p no:cacheprovider --randomly-seed=$(SEED)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## kill a worker after the provider accepted, and see one email
	.venv/bin/tenure demo $(ARGS)

test: setup ## run all tests on SQLite and a real PostgreSQL, under ten minutes
	$(PYTEST) $(ARGS) $(TESTS)

check: setup ## formatting, lint, types and import arrows, under one minute
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports

fix: setup ## format, and repair what the linter can repair
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

contract: setup ## the one suite that every store passes, blocking and awaiting
	$(PYTEST) -m "not nightly" $(ARGS) tests/contract

simulate: setup ## many workers, virtual time, a faulty provider, one seed
	$(PYTEST) $(ARGS) tests/simulation

crash: setup ## every flow cut at every place where a process can die
	$(PYTEST) $(ARGS) tests/crash

bench: setup ## measure on this machine, beside the bare driver
	$(PY) -m bench $(ARGS)

bench-peers: setup ## measure beside other systems, in environments of their own
	# One that cannot be installed has that as its result; the others are measured.
	-$(PY) -m bench.peers.install
	$(PY) -m bench.compare $(ARGS)

bench-long: setup ## measure with many rows, under a pinned snapshot, over time
	$(PY) -m bench.long $(ARGS)

docs: setup ## write the generated reference pages
	$(PY) docs/generate.py $(ARGS)

nightly: setup ## all tests, the long ones too, with fresh seeds; an hour
	TENURE_HYPOTHESIS=nightly $(PY) -m pytest -n $(WORKERS) --dist worksteal -p no:cacheprovider \
	    --randomly-seed=$$(date +%s) -m "nightly or twin or not nightly" --timeout 3600 $(ARGS) $(TESTS)

build: setup ## build the wheel and the source archive into dist/
	rm -rf dist
	$(PY) -m build --outdir dist

clean: ## remove the environment and everything made
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

setup:
	@sh .ci/venv
