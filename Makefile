# Two commands do everything on a fresh Debian machine: `make demo` and `make test`. `make help` lists the rest.
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv
JOBS ?= $(shell nproc)
PRESET ?= release
RANKS ?= 4
DEMO_ARGS ?=
BENCH_ARGS ?= --device cpu --ranks 2 --shape wan-480p
CTEST_ARGS ?=
PYTEST_ARGS ?=
TIER ?= ci
MODEL_JOBS ?= 2

PYTHON_BIN := $(CURDIR)/$(VENV)/bin/python
# cmake, ninja, ruff and the rest are those of the virtual environment; CMake finds its Python by VIRTUAL_ENV.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export JOBS

SETUP_INPUTS := pyproject.toml tools/setup_dev.sh

.PHONY: help demo bench test build cpp-test py-test models sanitize lint format dist setup clean distclean

help: ## this list
	@echo "fast_ulysses: make TARGET"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'
	@echo "Variables: RANKS=4 DEMO_ARGS= | CTEST_ARGS='-R plan' | PYTEST_ARGS='-k name' | PRESET=release|debug|tsan|asan|ubsan | JOBS=$(JOBS) | PYTHON="

demo: $(VENV)/.demo build ## a real video transformer on RANKS ranks: same result as one process, with timings and a picture
	$(VENV)/bin/fast-ulysses demo --ranks $(RANKS) $(DEMO_ARGS)

bench: $(VENV)/.demo build ## the exchange against torch.distributed and one memcpy (BENCH_ARGS; see docs/benchmark.md)
	$(VENV)/bin/fast-ulysses bench exchange $(BENCH_ARGS)

test: $(VENV)/.test ## everything: C++ under mpirun, Python, protocol models; under 20 minutes on two cores
	+@MAKE='$(MAKE)' tools/run_tests.sh

build: $(VENV)/.base ## the extension module (and the C++ tests, once their set-up is there), in build/release
	@cmake --preset release \
	    -DFAST_ULYSSES_TESTS=$$(test -e $(VENV)/.test && echo ON || echo OFF) --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@$(MAKE) --silent --no-print-directory $(VENV)/.package

# The package as an editable install: what Python imports is what lies in the tree. The module is built by then.
$(VENV)/.package: $(VENV)/.base pyproject.toml setup.py
	@echo "[setup] installing the package, editable, into $(VENV)"
	@$(PYTHON_BIN) -m pip install -qq --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

cpp-test: $(VENV)/.test ## GoogleTest suites by ctest, multi-process ones under mpirun -n 1,2,3,4 (PRESET, CTEST_ARGS)
	@cmake --preset $(PRESET) --log-level=WARNING >/dev/null
	@cmake --build --preset $(PRESET) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS) $(CTEST_ARGS)

py-test: $(VENV)/.test build ## pytest (PYTEST_ARGS)
	@$(PYTHON_BIN) -m pytest $(PYTEST_ARGS)

models: $(VENV)/.test ## the protocol models, checked exhaustively by spin, and their mutants (TIER, MODEL_JOBS: up to 3 GB each)
	@$(PYTHON_BIN) tools/check_models.py --tier $(TIER) --jobs $(MODEL_JOBS)

sanitize: $(VENV)/.test ## the C++ unit tests under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer
	@# unit_plan_model is one thread of arithmetic, and slow under the first two; overflow is what it could have
	@$(MAKE) --no-print-directory cpp-test PRESET=tsan CTEST_ARGS="-L unit -E plan_model"
	@$(MAKE) --no-print-directory cpp-test PRESET=asan CTEST_ARGS="-L unit -E plan_model"
	@$(MAKE) --no-print-directory cpp-test PRESET=ubsan CTEST_ARGS="-L unit"

lint: $(VENV)/.lint build ## ruff, mypy --strict, clang-format, clang-tidy, shellcheck, codespell
	@tools/lint.sh

format: $(VENV)/.lint ## lay out Python and C++ as lint wants it
	@tools/lint.sh --fix

dist: $(VENV)/.lint ## source distribution and wheel, built in isolation and checked, in dist/
	@rm -rf dist && mkdir -p build
	@$(PYTHON_BIN) -m build --outdir dist . >build/dist.log 2>&1 || { tail -n 40 build/dist.log; exit 1; }
	@$(PYTHON_BIN) tools/check_wheel.py dist

setup: $(VENV)/.test $(VENV)/.lint ## only the set-up, of everything

$(VENV)/.base: $(SETUP_INPUTS)
	@tools/setup_dev.sh base
	@touch $@

$(VENV)/.test: $(VENV)/.base $(SETUP_INPUTS)
	@tools/setup_dev.sh test
	@touch $@

$(VENV)/.demo: $(VENV)/.base $(SETUP_INPUTS)
	@tools/setup_dev.sh demo
	@touch $@

$(VENV)/.lint: $(VENV)/.base $(SETUP_INPUTS)
	@tools/setup_dev.sh lint
	@touch $@

clean: ## remove what builds and tests left
	rm -rf build dist python/*.egg-info python/fast_ulysses/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(VENV)/.package
	find python py_tests tools -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## and the virtual environment
	rm -rf $(VENV)
