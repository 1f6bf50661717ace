# Two commands for a newcomer: `make reproduce` and `make test`. Everything else: `make help`.

PYTHON := .venv/bin/python
JOBS ?= 2
FIGURES ?= papers
PROFILE ?= quick
REQUESTS ?= 350000
TESTS ?=
AOT ?= 1
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help env aot driver ray clients peer peer-simulator peer-aisimulate referee peer-server warm reproduce test test-slow test-all soak docs browser check platforms lint format-check types imports notebook-sync \
	notebooks bench gpu clean

help: ## show the targets and their settings
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile
	@echo "Settings: PROFILE=quick|full FIGURES=papers|all|name,name REQUESTS=n TESTS='paths' ARGS='more arguments'"
	@echo "          JOBS=2 (test processes) C2C_PYTHON=path (the Python to build .venv with)"
	@echo "Questions: .venv/bin/c2c --help, or c2c COMMAND --help; see docs/commands.md"

env: ## make .venv, once (instant when it is up to date)
	@.ci/make-venv

warm: env
	@$(PYTHON) -m c2c.simulator.warm

reproduce: warm ## replay a trace, draw the figures, compare with the papers
	$(PYTHON) -m c2c simulate +experiment=c2cserve/main_job
	$(PYTHON) -m c2c reproduce figures=$(FIGURES) profile=$(PROFILE) $(ARGS)

aot: env ## install the compiler that checks GPU kernels without a GPU (0.7 GB, .venv-aot)
	@if [ "$(AOT)" != 0 ]; then .ci/make-aot; fi

driver: env ## install the driver's calls from Python (33 MB, .venv-driver)
	@.ci/make-beside driver

ray: env ## install Ray beside (270 MB, .venv-ray), for the tests of sweeps and shards on it
	@.ci/make-beside ray

peer: env ## install torch and transformers, to compare with (.venv-peer)
	@.ci/make-peer

peer-simulator: env ## install Vidur, to compare with (.venv-peer-simulator)
	@.ci/make-extra peer-simulator

peer-aisimulate: env ## install NVIDIA's AISimulate, to compare with (1.5 GB, .venv-peer-aisimulate)
	@.ci/make-extra peer-aisimulate

referee: peer-simulator peer-aisimulate ## this simulator and others on 21 scenarios: speed, agreement, refusals
	@.venv/bin/c2c bench referee $(ARGS)

peer-server: env ## install llama.cpp's server, to compare with (.venv-peer-server)
	@.ci/make-extra peer-server

clients: env ## install clients of the live engine (2.3 GB, .venv-clients, .venv-aiperf), which make soak runs against it
	@.ci/make-extra clients
	@.ci/make-extra aiperf

# A test that hangs for a quarter of an hour fails, with every thread's stack; the slowest takes two minutes on a busy machine.
TEST := $(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal --durations=10 \
	-o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test: warm ## run the tests that are quick and one of each slow kind; TESTS='tests/cost -k tiles' runs these, slow or not
	$(TEST) -m "not soak$(if $(TESTS),, and not slow)" $(TESTS) $(ARGS)

test-slow: warm aot driver ray ## run the others: they take longer, or need more than .venv (AOT=0 leaves the GPU compiler out)
	$(TEST) -m "slow and not soak" $(TESTS) $(ARGS)

test-all: test test-slow ## run all tests but those of make soak

soak: warm ## run the tests that take minutes: all of what the tiers sample, the wheel in an empty environment
	$(PYTHON) -m pytest -q -n 0 -m soak $(TESTS) $(ARGS)

docs: env ## the documentation as a site in build/site, links checked (.venv-docs)
	@.ci/make-extra docs
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --quiet --strict
	@echo "documentation: build/site/index.html"

browser: env ## install Chromium as a library (0.7 GB, .venv-browser): make soak opens the report in it
	@.ci/make-extra browser

check: lint format-check types imports notebook-sync ## ruff, mypy, import layers, notebook pairs (all of them: make -k check)

platforms: env ## ask the index for the locked wheels of x86_64 and aarch64 (a GH200's processor is Arm)
	@.ci/check-platforms

lint: env
	$(PYTHON) -m ruff check .

format-check: env
	$(PYTHON) -m ruff format --check .

types: env
	$(PYTHON) -m mypy

imports: env
	@$(PYTHON) -c 'from importlinter.cli import lint_imports_command as run; run()' --no-logo

notebook-sync: env
	$(PYTHON) .ci/notebook_sync.py

notebooks: warm ## execute the notebooks
	$(PYTHON) -m pytest -q -n $(JOBS) --dist worksteal -p no:cacheprovider --nbmake --nbmake-timeout=600 notebooks/*.ipynb $(ARGS)

bench: warm ## requests a second and peak memory of the simulator (REQUESTS=3500000), and of every system
	$(PYTHON) -m c2c bench simulator requests=$(REQUESTS) $(ARGS)
	$(PYTHON) -m c2c bench systems

gpu: ## measure and check this machine's GPU and the kernels on it (ARGS="kernels --minutes 9")
	@.ci/gpu $(ARGS)

clean: ## remove .venv and caches; run folders and results stay
	rm -rf .venv .venv-aot .venv-aot.partial .venv-driver .venv-driver.partial .venv-ray .venv-ray.partial .venv-peer .venv-peer-simulator .venv-peer-aisimulate .venv-peer-server .venv-clients .venv-aiperf .venv-docs .venv-browser .venv-lock .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		.benchmarks build dist c2c.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
