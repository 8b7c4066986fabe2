# make demo   train two holders together and compare (installs into .venv first)
# make test   everything that continuous integration checks

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SPU_VENV := .venv-spu
SPU_INSTALLED := $(SPU_VENV)/.installed
CRYPTEN_VENV := .venv-crypten
CRYPTEN_INSTALLED := $(CRYPTEN_VENV)/.installed

# Folder of the public data sets; the demonstration and the tests need none of them.
VEILGRAPH_DATA ?= $(or $(wildcard ../shared/datasets),.data)
export VEILGRAPH_DATA

CANDIDATES := python3.13 python3.12 python3.11 python3
SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
TABLES ?= table2 table3 table4
SEEDS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo demo-network test nightly lint format bench bench-spu bench-peers bench-scale spu reproduce clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## two holders of handwritten digits: together, each alone, and pooled
	@$(BIN)/veilgraph demo
	@echo "(to have the command veilgraph in this shell: source $(BIN)/activate)"

demo-network: $(INSTALLED) ## three organisations with tables of their own, as processes over mutual TLS
	@$(BIN)/veilgraph demo-network

test: lint ## what continuous integration runs: lint, types, import floors, tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

nightly: $(INSTALLED) ## hours: 100,000 hostile messages of every kind, every role killed at 20 random moments
	@OMP_NUM_THREADS=1 VEILGRAPH_FUZZ_CASES=100000 $(BIN)/python -m pytest -n 2 tests/link/test_fuzz.py tests/attacks/test_hostile_peer.py
	@OMP_NUM_THREADS=1 VEILGRAPH_KILLS=20 $(BIN)/python -m pytest tests/faults
	@OMP_NUM_THREADS=1 VEILGRAPH_ENGINE_KILLS=20 $(BIN)/python -m pytest tests/deploy/test_engine_kills.py

lint: $(INSTALLED) ## format, lint, types, import floors; changes nothing
	@$(BIN)/ruff format --check --quiet . || { echo "run make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED) ## format the code and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## measure speed and traffic
	@$(BIN)/python -m benchmarks

spu: $(SPU_INSTALLED) ## SPU's environment, for bench-spu and veilgraph reproduce q3 (Python 3.11)

bench-spu: $(INSTALLED) $(SPU_INSTALLED) ## the secure maximum beside SPU's, which is installed apart (Python 3.11)
	@$(BIN)/python -m benchmarks.secure_max --spu $(SPU_VENV)/bin/python

bench-peers: $(INSTALLED) $(SPU_INSTALLED) $(CRYPTEN_INSTALLED) ## the secure product beside SPU's and CrypTen's, each installed apart
	@$(BIN)/python -m benchmarks.peers

bench-scale: $(INSTALLED) ## an epoch on graphs from ten thousand to five million nodes (docs/scale.md); about ten minutes, 24 GiB
	@$(BIN)/python -m benchmarks.scale

reproduce: $(INSTALLED) ## the paper's tables; TABLES="table2" SEEDS=1 for a part
	@for table in $(TABLES); do $(BIN)/veilgraph reproduce "$$table" --seeds $(SEEDS) || exit; done

clean: ## remove the installation and all caches; runs/ stays
	@rm -rf $(VENV) $(SPU_VENV) $(CRYPTEN_VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@python=; \
	for candidate in $(or $(PYTHON),$(CANDIDATES)); do \
	  if "$$candidate" -c '$(SUITABLE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "veilgraph needs Python 3.11 or newer with venv; install it, or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(VENV) with $$("$$python" --version); this takes a minute or two the first time."; \
	"$$python" -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(SPU_INSTALLED): src/veilgraph/baselines/spu/requirements.txt
	@python=; \
	for candidate in $(or $(SPU_PYTHON),python3.11 python3); do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "SPU needs Python 3.11 with venv; install it, or name one: make spu SPU_PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	echo "Installing SPU into $(SPU_VENV)."; \
	"$$python" -m venv $(SPU_VENV)
	@$(SPU_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@

$(CRYPTEN_INSTALLED): benchmarks/crypten/requirements.txt $(INSTALLED)
	@echo "Installing CrypTen into $(CRYPTEN_VENV)."
	@$(BIN)/python -m venv $(CRYPTEN_VENV)
	@$(CRYPTEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@$(CRYPTEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps crypten==0.4.1
	@touch $@
