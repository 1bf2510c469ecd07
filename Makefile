# `make demo` and `make test` set everything up by themselves, in .venv; a second run starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK   := requirements-dev.lock
JOBS   ?= 2
NATIVE := CMakeLists.txt $(foreach kind,cpp hpp inl,$(wildcard native/*.$(kind) native/*/*.$(kind) native/*/*/*.$(kind)))

# Where larger test data is, when there is any; tests that need it are skipped when there is none.
export CITADEL_DATA ?= $(dir $(CURDIR))shared/data

# Settings of the caller's pip and Python that would point out of .venv.
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV PIP_REQUIREMENT PIP_CONSTRAINT \
         PIP_BUILD_CONSTRAINT PIP_NO_DEPS PIP_REQUIRE_HASHES

.PHONY: help demo test lint format night bench reproduce lock clean setup
.DELETE_ON_ERROR:

help:
	@echo "make demo    index the documentation of Python's own library and ask it three questions"
	@echo "make test    style, types, layers and all tests"
	@echo "make lint    style, types and layers alone"
	@echo "make night   the long variants of the tests"
	@echo "make bench   every benchmark, one table each"
	@echo "make reproduce   the paper's tables and figures for the collections in CITADEL_DATA; TRAIN=1 trains what is missing"
	@echo "make setup   build the package into .venv and stop"
	@echo "make lock    renew $(LOCK) from .venv"
	@echo "make clean   remove .venv, builds and caches"

demo: $(VENV)/.built
	@$(BIN)/citadel demo

test: lint  # one thread of torch and BLAS in each worker: more than cores there are would wait for each other
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src tests $(if $(wildcard benchmarks/*.py),benchmarks)
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

night: $(VENV)/.dev
	CITADEL_NIGHT=1 $(BIN)/pytest -n $(JOBS)

bench: $(VENV)/.bench
	set -e; for file in $(filter-out %/common.py benchmarks/gpu%,$(wildcard benchmarks/*.py)); do $(BIN)/python $$file; done

reproduce: $(VENV)/.dev
	$(BIN)/python scripts/reproduce.py $(if $(TRAIN),--train)

setup: $(VENV)/.dev

lock: $(VENV)/.dev $(VENV)/.bench
	{ sed -n '/^#/p' $(LOCK); $(BIN)/python -m pip freeze --exclude citadel-ir; } > build/lock
	mv build/lock $(LOCK)

# A stamp file stands for each finished step; it is older than what it depends on when the step must be done again.

$(VENV)/.tools: $(LOCK) scripts/prerequisites.sh
	@sh scripts/prerequisites.sh $(PYTHON)
	@echo "Setting up $(VENV) ..."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install -c $(LOCK) scikit-build-core nanobind cmake ninja
	@touch $@

$(VENV)/.built: $(VENV)/.tools pyproject.toml $(NATIVE)
	@echo "Building citadel ..."
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -c $(LOCK) --no-build-isolation -e .
	@touch $@

# The package is installed by now, so these fetch only what the extra adds to it.
$(VENV)/.dev: $(VENV)/.built
	@echo "Installing the development tools ..."
	@$(PIP) install -c $(LOCK) 'citadel-ir[dev]'
	@$(PIP) install -c $(LOCK) --only-binary atheris 'citadel-ir[fuzz]' 2>/dev/null || \
		echo "There is no atheris for this machine: the tests that need it are skipped."
	@touch $@

$(VENV)/.bench: $(VENV)/.built
	@echo "Installing what the benchmarks compare with ..."
	@$(PIP) install -c $(LOCK) 'citadel-ir[bench]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache src/citadel/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
