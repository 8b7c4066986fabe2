# make demo   train two holders together and compare (installs into .venv first)
# make test   everything that continuous integration checks

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SPU_VENV := .venv-spu
SPU_INSTALLED := $(SPU_VENV)/.installed
FLOWER_VENV := .venv-flower
FLOWER_INSTALLED := $(FLOWER_VENV)/.installed
CRYPTEN_VENV := .venv-crypten
CRYPTEN_INSTALLED := $(CRYPTEN_VENV)/.installed
LOCKED_VENV := .venv-locked
LOCKED_INSTALLED := $(LOCKED_VENV)/.installed
DOCS_VENV := .venv-docs
DOCS_INSTALLED := $(DOCS_VENV)/.installed
TOOLS_VENV := .venv-tools
TOOLS_INSTALLED := $(TOOLS_VENV)/.installed

# Folder of the public data sets; the demonstration and the tests need none of them.
VEILGRAPH_DATA ?= $(or $(wildcard ../shared/datasets),.data)
export VEILGRAPH_DATA

# Compiled once, not in each of the hundreds of processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

CANDIDATES := python3.13 python3.12 python3.11 python3
SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
SPU_SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 11))
LOCKABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
# pip as for a deployment: exact files, wheels alone, nothing that the lock does not name.
LOCKED_PIP := -m pip install -qq --disable-pip-version-check --only-binary :all: --no-deps --require-hashes
# The requirements file that brings torch; one of your own may state its hash.
TORCH ?= constraints.txt
# Where make wheelhouse collects, before it is whole.
COLLECTED := wheelhouse.new
# Where make dist puts what it builds.
DIST ?= dist
# Distributions of their own that add commands and parts by entry points.
PACKAGES := packages/averaging packages/datasets packages/embeddings packages/machines packages/node_dp packages/testing packages/trajectories packages/tuning packages/wizard
TABLES ?= table2 table3 table4
SEEDS ?= 3

.DEFAULT_GOAL := help
.PHONY: docs docs-lint docs-search notebooks help demo demo-network install-locked lock sbom dist wheelhouse test suite nightly goldens lint format bench bench-spu bench-peers bench-scale bench-sealed bench-averaging spu reproduce clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## two holders of handwritten digits: together, each alone, and pooled
	@$(BIN)/veilgraph demo
	@echo "(to have the command veilgraph in this shell: source $(BIN)/activate)"

demo-network: $(INSTALLED) ## three organisations with tables of their own, as processes over mutual TLS
	@$(BIN)/veilgraph demo network

install-locked: ## for a deployment: into .venv-locked, every file by the hashes in lock/deploy.txt
	@rm -rf $(LOCKED_VENV)
	@$(MAKE) --no-print-directory $(LOCKED_INSTALLED)
	@echo "$$($(LOCKED_VENV)/bin/veilgraph --version) is installed: $(LOCKED_VENV)/bin/veilgraph"

lock: $(TOOLS_INSTALLED) ## renew lock/: the newest versions that pyproject.toml allows and that are a week old
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/tools.in --output-file lock/tools.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml --constraints constraints.txt --extra deploy \
	  pyproject.toml lock/machines.in --output-file lock/deploy.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/broker.in --output-file lock/broker.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/pip.in --output-file lock/pip.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/pkcs11.in --output-file lock/pkcs11.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/nobody.in --output-file lock/nobody.txt
	@$(TOOLS_VENV)/bin/uv pip compile --quiet --config-file lock/uv.toml lock/alignment.in --output-file lock/alignment.txt

sbom: $(LOCKED_INSTALLED) $(TOOLS_INSTALLED) ## what make install-locked installed, as CycloneDX: dist/veilgraph.cdx.json
	@mkdir -p dist
	@$(TOOLS_VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file dist/veilgraph.cdx.json $(LOCKED_VENV)/bin/python
	@$(TOOLS_VENV)/bin/python lock/hashes.py "$$($(LOCKED_VENV)/bin/veilgraph --version | cut -d ' ' -f 2)" \
	  dist/veilgraph.cdx.json $(LOCKED_VENV)/report-lock.json $(LOCKED_VENV)/report-torch.json

# Built with what lock/tools.txt names, the wheel from the unpacked source distribution; what an earlier build left would get in.
dist: $(TOOLS_INSTALLED) ## wheel and source distribution into dist/ (DIST=folder: there), checked: contents, metadata
	@rm -rf build src/veilgraph.egg-info $(DIST)/veilgraph-*.whl $(DIST)/veilgraph-*.tar.gz
	@$(TOOLS_VENV)/bin/python -m build --quiet --no-isolation --outdir $(DIST) .
	@$(TOOLS_VENV)/bin/python -m twine --no-color check --strict $(DIST)/veilgraph-*.whl $(DIST)/veilgraph-*.tar.gz
	@$(TOOLS_VENV)/bin/python lock/contents.py $(DIST)

# From a commit alone, which all parties can name. The folder has its name only when it is whole.
wheelhouse: ## for machines without a network: all wheels, lock/ and the SBOM into wheelhouse/, under SHA256SUMS
	@test -z "$$(git status --porcelain -- src packages lock docs pyproject.toml constraints.txt)" || \
	  { echo "A wheelhouse is built from a commit, but files have changed. Commit them, or see git status." >&2; exit 1; }
	@$(MAKE) --no-print-directory install-locked
	@$(MAKE) --no-print-directory sbom
	@rm -rf $(COLLECTED) packages/*/build packages/*/src/*.egg-info
	@mkdir -p $(COLLECTED)/lock
	@$(MAKE) --no-print-directory dist DIST=$(COLLECTED)
	@for package in $(PACKAGES); do \
	  $(TOOLS_VENV)/bin/python -m build --quiet --wheel --no-isolation --outdir $(COLLECTED) "$$package" || exit; \
	done
	@{ echo "# veilgraph at commit $$(git rev-parse HEAD)"; $(LOCKED_VENV)/bin/python -m lock.wheelhouse $(COLLECTED) \
	  $(LOCKED_VENV)/report-lock.json $(LOCKED_VENV)/report-torch.json; } > $(COLLECTED)/requirements.txt
	@$(LOCKED_VENV)/bin/python $(LOCKED_PIP:install=download) --find-links $(COLLECTED) --dest $(COLLECTED) \
	  -r lock/pip.txt -r lock/broker.txt -r lock/pkcs11.txt -r lock/nobody.txt -r $(COLLECTED)/requirements.txt
	@cp $(sort $(wildcard lock/*.txt) constraints.txt $(TORCH)) $(COLLECTED)/lock
	@cp dist/veilgraph.cdx.json $(COLLECTED)
	@cd $(COLLECTED) && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | xargs sha256sum > SHA256SUMS
	@rm -rf wheelhouse && mv $(COLLECTED) wheelhouse
	@echo "wheelhouse/ of commit $$(git rev-parse HEAD): $$(wc -l < wheelhouse/SHA256SUMS) files, $$(du -sh wheelhouse | cut -f 1)"
	@cd wheelhouse && sha256sum SHA256SUMS

test: $(INSTALLED) ## what continuous integration runs: lint, types, import floors, tests
	@$(MAKE) --no-print-directory --jobs=2 lint suite

# Beside lint, which for most of its time has one core to do with.
suite: $(INSTALLED)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

nightly: $(INSTALLED) ## hours: 100,000 hostile messages and 500 bad inputs of every kind, every role killed at 20 random moments, all attacks
# Python 3.11 alone has SPU; without it the tests beside CHEETAH are skipped.
	@$(MAKE) --no-print-directory spu || true
	@OMP_NUM_THREADS=1 VEILGRAPH_FUZZ_CASES=100000 $(BIN)/python -m pytest -n 2 tests/link/test_fuzz.py
	@OMP_NUM_THREADS=1 VEILGRAPH_NIGHTLY=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	@OMP_NUM_THREADS=1 VEILGRAPH_NIGHTLY=1 VEILGRAPH_FUZZ_CASES=100000 $(BIN)/python -m pytest tests/attacks packages/machines/tests/test_attacks.py
	@OMP_NUM_THREADS=1 VEILGRAPH_NIGHTLY=1 VEILGRAPH_KILLS=20 $(BIN)/python -m pytest tests/faults
	@OMP_NUM_THREADS=1 VEILGRAPH_ENGINE_KILLS=20 $(BIN)/python -m pytest tests/deploy/test_engine_kills.py

goldens: $(INSTALLED) ## small runs of every kind, to the bit: against tests/goldens, or BASE=main: that commit's, made here
	@$(BIN)/python -m tests.goldens $(if $(BASE),--base $(BASE))

docs: $(INSTALLED) $(DOCS_INSTALLED) ## write again what is made of the code, and build the site into build/site, links checked
	@$(BIN)/python -m docs.picture
	@$(BIN)/python -m docs.badges
	@$(BIN)/python -m docs.tables
	@$(BIN)/python -m docs.settings
	@$(BIN)/python -m docs.site stage
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --config-file docs/site.yml
	@$(BIN)/python -m docs.site check

notebooks: $(INSTALLED) $(DOCS_INSTALLED) ## run the notebooks and store what their cells show; about a minute
	@$(DOCS_VENV)/bin/python -m docs.notebooks

docs-search: $(DOCS_INSTALLED) ## ask the built site's search what newcomers ask, in Chromium
	@$(DOCS_VENV)/bin/python -m docs.search

docs-lint: $(INSTALLED) ## the text of the documentation: length, readers, terms; make test checks it too
	@$(BIN)/python -m docs.lint

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

spu: $(SPU_INSTALLED) ## SPU's environment, for bench-spu and python -m research q3 (Python 3.11)

bench-spu: $(INSTALLED) $(SPU_INSTALLED) ## the secure maximum beside SPU's, which is installed apart (Python 3.11)
	@$(BIN)/python -m benchmarks.secure_max --spu $(SPU_VENV)/bin/python

bench-peers: $(INSTALLED) $(SPU_INSTALLED) $(CRYPTEN_INSTALLED) ## the secure product beside SPU's and CrypTen's, each installed apart
	@$(BIN)/python -m benchmarks.peers

bench-scale: $(INSTALLED) ## an epoch on graphs from ten thousand to five million nodes (docs/guides/scale.md); about ten minutes, 24 GiB
	@$(BIN)/python -m benchmarks.scale

bench-averaging: $(INSTALLED) $(FLOWER_INSTALLED) ## averaging under masks beside Flower's FedAvg, which is installed apart (docs/explanation/averaging.md)
	@$(BIN)/python -m benchmarks.averaging

bench-sealed: $(INSTALLED) $(SPU_INSTALLED) ## whole sealed jobs, beside SPU, and up to a million nodes (docs/reference/sealed-benchmarks.md); about an hour, 24 GiB
	@$(BIN)/python -m benchmarks.sealed
	@$(BIN)/python -m benchmarks.sealed_peers
	@$(BIN)/python -m benchmarks.cheetah
	@$(BIN)/python -m benchmarks.sealed_scale

reproduce: $(INSTALLED) ## the paper's tables; TABLES="table2" SEEDS=1 for a part
	@for table in $(TABLES); do $(BIN)/python -m research "$$table" --seeds $(SEEDS) || exit; done

clean: ## remove the installation and all caches; runs/ stays
	@rm -rf $(VENV) $(SPU_VENV) $(CRYPTEN_VENV) $(FLOWER_VENV) $(LOCKED_VENV) $(TOOLS_VENV) $(DOCS_VENV) build dist wheelhouse $(COLLECTED) src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call make-venv,folder,candidates,test,Python that is needed,how to name one)
define make-venv
	@python=; \
	for candidate in $(2); do \
	  if "$$candidate" -c '$(3)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "$(4) with venv is needed; install it, or name one: make $(5)=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Installing into $(1) with $$("$$python" --version); this takes a minute or two the first time."; \
	"$$python" -m venv $(1)
endef

$(INSTALLED): pyproject.toml $(PACKAGES:%=%/pyproject.toml) constraints.txt lock/broker.txt
	$(call make-venv,$(VENV),$(or $(PYTHON),$(CANDIDATES)),$(SUITABLE),Python 3.11 or newer,PYTHON)
# Compiled when it is imported first: most of what comes never is, and to compile it all takes two fifths of the time.
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]' $(PACKAGES:%=-e %)
# The tests that need a broker are skipped where there is no wheel of it.
	@$(BIN)/python $(LOCKED_PIP) -r lock/broker.txt || echo "No broker for this platform; its tests are skipped."
	@touch $@

# Flower's own libraries first, then those that veilgraph has.
$(FLOWER_INSTALLED): benchmarks/flower/requirements.txt $(INSTALLED)
	@$(BIN)/python -m venv $(FLOWER_VENV)
	@$(FLOWER_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  { $(BIN)/python -c "$$site"; echo "$(CURDIR)/src"; } > "$$($(FLOWER_VENV)/bin/python -c "$$site")/veilgraph.pth"
	@touch $@

$(SPU_INSTALLED): research/spu/requirements.txt
	$(call make-venv,$(SPU_VENV),$(or $(SPU_PYTHON),python3.11 python3),$(SPU_SUITABLE),Python 3.11,SPU_PYTHON)
	@$(SPU_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@

$(CRYPTEN_INSTALLED): benchmarks/crypten/requirements.txt $(INSTALLED)
	@echo "Installing CrypTen into $(CRYPTEN_VENV)."
	@$(BIN)/python -m venv $(CRYPTEN_VENV)
	@$(CRYPTEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@$(CRYPTEN_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps crypten==0.4.1
	@touch $@

# In this order: what torch needs is there by its hash before torch comes and adds itself, and CUDA where its build has it.
$(LOCKED_INSTALLED): pyproject.toml constraints.txt lock/deploy.txt
	$(call make-venv,$(LOCKED_VENV),$(or $(PYTHON),$(CANDIDATES)),$(LOCKABLE),Python 3.11 to 3.13,PYTHON)
	@$(LOCKED_VENV)/bin/python $(LOCKED_PIP) --report $(LOCKED_VENV)/report-lock.json -r lock/deploy.txt
	@$(LOCKED_VENV)/bin/python -m pip install -qq --disable-pip-version-check --only-binary :all: \
	  --report $(LOCKED_VENV)/report-torch.json -r $(TORCH)
	@$(LOCKED_VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation . ./packages/averaging ./packages/datasets ./packages/machines ./packages/node_dp ./packages/wizard
	@$(LOCKED_VENV)/bin/python -m pip check
	@touch $@

# mkdocs reads the sources of veilgraph, notebooks import it: all of .venv comes behind what is installed here.
$(DOCS_INSTALLED): docs/requirements.txt | $(INSTALLED)
	@echo "Installing mkdocs and Jupyter into $(DOCS_VENV)."
	@$(BIN)/python -m venv --clear $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  echo "import site; site.addsitedir('$$($(BIN)/python -c "$$site")')" > "$$($(DOCS_VENV)/bin/python -c "$$site")/veilgraph.pth"
	@touch $@

$(TOOLS_INSTALLED): lock/tools.txt
	$(call make-venv,$(TOOLS_VENV),$(or $(PYTHON),$(CANDIDATES)),$(SUITABLE),Python 3.11 or newer,PYTHON)
	@$(TOOLS_VENV)/bin/python $(LOCKED_PIP) -r $<
	@touch $@
