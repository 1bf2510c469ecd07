# `make demo` and `make test` set everything up by themselves, in .venv; a second run starts at once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK   := requirements-dev.lock
JOBS   ?= 2
# The parts of `make night`, in this order. The limits catch a part that hangs; most take a minute or two;
# tests/property, with 20,000 examples of each property of filters, takes far longer.
NIGHT  := tests/crash/test_full_disk.py=15m tests/crash/test_memory.py=15m \
          tests/crash/test_many_commits.py=15m tests/crash/test_read_faults.py=15m tests/corrupt=15m tests/concurrency=15m tests/fuzz=15m \
          tests/property=120m tests/explain/test_sums.py=15m tests/text=15m tests/cli/test_bad_input.py=15m \
          tests/cli/test_resume.py=15m tests/train/test_loop.py=15m tests/server/test_fuzz.py=15m \
          tests/server/test_swap.py=15m tests/server/test_slow_clients.py=15m tests/server/web=15m \
          tests/server/test_overload.py=15m tests/crash/test_power_loss.py=15m \
          tests/crash/test_object_store.py=15m tests/crash/test_object_store_states.py=30m tests/cluster=30m \
          tests/crash/test_process_death.py=15m

NATIVE := CMakeLists.txt $(foreach kind,cpp hpp,$(wildcard native/*/*.$(kind) native/*/*/*.$(kind)))

# The folder of larger test data; without it the tests that need it are skipped.
export CITADEL_DATA ?= $(dir $(CURDIR))shared/data

# Settings of the caller's pip and Python that would point out of .venv.
unexport PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_REQUIRE_VIRTUALENV \
         PIP_REQUIREMENT PIP_CONSTRAINT PIP_BUILD_CONSTRAINT PIP_NO_DEPS PIP_REQUIRE_HASHES

.PHONY: help demo test test-slow lint format docs wheel night bench reproduce lock clean setup
.DELETE_ON_ERROR:

help:
	@echo "make demo        index the documentation of Python's own library and ask it three questions"
	@echo "make test        style, types, layers and the quick tests; T=tests/index runs one folder or file"
	@echo "make test-slow   crash states, kills, fuzzing, sanitizers and soaks"
	@echo "make lint        style, types and layers"
	@echo "make format      format the code and fix what ruff can fix"
	@echo "make docs        build the documentation site in build/docs/site, offline; VERSIONS=1 adds their menu"
	@echo "make wheel       build the wheel in dist and test it in an empty environment"
	@echo "make night       long runs of the crash, fuzz and load tests"
	@echo "make bench       every benchmark that needs no GPU, one table each"
	@echo "make reproduce   the paper's tables and figures for CITADEL_DATA; TRAIN=1 trains missing models"
	@echo "make setup       build the package into .venv"
	@echo "make lock        update $(LOCK) from .venv"
	@echo "make clean       remove .venv, builds and caches"

demo: $(VENV)/.built
	@$(BIN)/citadel demo

# One thread of torch and BLAS per worker: more threads than cores would wait for each other.
test: $(if $(T),$(VENV)/.dev,lint)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) $(if $(T),$(T),-m "not slow")

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy src tests $(if $(wildcard benchmarks/*.py),benchmarks)
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	! command -v clang-format >/dev/null || clang-format -i $(filter %.cpp %.hpp,$(NATIVE))

docs: $(VENV)/.docs
	$(BIN)/python -m scripts.docs_site $(if $(VERSIONS),--versions)

wheel:
	$(PYTHON) scripts/wheel.py

night: $(VENV)/.dev
	@sh scripts/night.sh $(BIN)/pytest $(JOBS) $(NIGHT)

bench: $(VENV)/.bench
	set -e; for file in $(filter-out %/common.py %/train.py %/graph_large.py %/off_topic.py %/hybrid.py benchmarks/gpu%,$(wildcard benchmarks/*.py)); \
		do $(BIN)/python $$file; done

reproduce: $(VENV)/.dev
	$(BIN)/python scripts/reproduce.py $(if $(TRAIN),--train)

setup: $(VENV)/.dev

lock: $(VENV)/.dev $(VENV)/.bench
	{ sed -n '/^#/p' $(LOCK); $(BIN)/python -m pip freeze --exclude citadel-ir; } > build/lock
	mv build/lock $(LOCK)

# Each finished step leaves a stamp file; a step runs again when something it depends on is newer.

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
		echo "atheris is not available for this machine: the tests that need it are skipped."
	@touch $@

$(VENV)/.bench: $(VENV)/.built
	@echo "Installing what the benchmarks compare with ..."
	@$(PIP) install -c $(LOCK) 'citadel-ir[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.built
	@echo "Installing the site generator ..."
	@$(PIP) install -c $(LOCK) 'citadel-ir[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist src/citadel/_native*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
