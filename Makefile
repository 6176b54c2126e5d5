# The verbs of the project. Each does all of its own set-up; ARGS="…" is passed on.
#
#   make demo    the whole path on this machine: engines, publishers, indexers, frontends, a trace
#   make test    the tests, Rust and Python, with one part of the slow ones (tests/README.md)
#   make test-slow  all slow tests, and more seeds of the simulation
#   make bench   the benchmarks (ARGS="--list" names them)
#   make proof   the index's concurrency: models, mutations, sanitizers, a long run (ARGS="--short": the models alone)
#   make lint    formatters, linters, type checkers, generated code up to date
#   make protos  generated code from protos/

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PYTEST_WORKERS ?= 2

MEMBERS := libs/hashing libs/wire libs/events libs/client libs/engines libs/mocker libs/chassis \
           libs/cli libs/verify libs/testing services/indexer services/publisher services/frontend loadtest
RUST_SOURCES := $(shell find libs -type f \( -path "*/rust/*" -o -path "*/baselines/*" \) \( -name "*.rs" -o -name Cargo.toml \)) \
                $(wildcard protos/kvatlas/v1/*.proto) Cargo.toml Cargo.lock
LOADGEN := target/release/kvatlas-loadgen
UV_INSTALL := $(BIN)/uv pip install -q --python $(BIN)/python

.PHONY: demo test test-slow bench proof lint protos setup native loadgen format clean

demo: setup
	$(BIN)/kvatlas demo $(ARGS)

# Chooses the part of the slow tests; the same number chooses the same part again.
KVATLAS_TEST_SEED ?= $(shell printf %d 0x0$$(git rev-parse HEAD 2>/dev/null | head -c 7))
test: export KVATLAS_TEST_SEED := $(KVATLAS_TEST_SEED)
test: setup
	cargo test --locked --workspace --exclude kvatlas-native
	$(BIN)/python libs/index/proof/prove.py --short
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(ARGS)

test-slow: export KVATLAS_TEST_SEED :=
test-slow: setup
	cargo run --locked --release -p kvatlas-simulation -- --seeds 0..20000
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) -m slow $(ARGS)

bench: setup loadgen
	$(BIN)/kvatlas bench $(ARGS)

proof: $(STAMPS)/tools
	$(BIN)/python libs/index/proof/prove.py $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(BIN)/python -m kvatlas_wire.generate --check

protos: setup
	$(BIN)/python -m kvatlas_wire.generate

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --all

setup: $(STAMPS)/python native

native: $(STAMPS)/native

loadgen: $(LOADGEN)

# One clear line for what is missing, before anything is half installed.
$(STAMPS)/tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "kvatlas needs Python 3.11 or later as '$(PYTHON)' (set PYTHON=… to name another)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "kvatlas needs Python's venv and pip modules (on Debian: python3-venv)" >&2; exit 1; }
	@command -v cargo >/dev/null \
	  || { echo "kvatlas needs cargo, 1.85 or later, on PATH (rustup installs it)" >&2; exit 1; }
	@command -v cc >/dev/null \
	  || { echo "kvatlas needs a C compiler as 'cc' on PATH" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) && mkdir -p $(STAMPS) && touch $@

# The first install builds the native module too; later only changed Rust sources do.
$(STAMPS)/python: $(STAMPS)/tools pyproject.toml constraints.txt \
                  $(MEMBERS:%=%/pyproject.toml) libs/native/pyproject.toml
	$(BIN)/python -m pip install -q -c constraints.txt uv
	$(UV_INSTALL) -c constraints.txt --group dev -e libs/native $(MEMBERS:%=-e %)
	@touch $@ $(STAMPS)/native

$(STAMPS)/native: $(STAMPS)/python $(RUST_SOURCES)
	$(UV_INSTALL) --no-deps --no-build-isolation -e libs/native
	@touch $@

$(LOADGEN): $(RUST_SOURCES) $(shell find loadtest/rust -type f)
	cargo build --locked --release -p kvatlas-loadgen
	@touch $@

clean:
	rm -rf $(VENV) target
