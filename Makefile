# Everything runs from .venv, which `make setup` fills. See CONTRIBUTING.md.
SHELL := /bin/bash
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONPATH := $(CURDIR)
# pytest keeps the rewritten tests, so that each worker of the next run need not compile them again.
export PYTHONDONTWRITEBYTECODE :=
# More workers than cores: the groups of tests that share Kafka, Spark or a suite mostly wait. conftest.py sorts them.
WORKERS := 5
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
STAMP := .venv/.setup-done
LIGHT := .venv/.light-done
LOCKS := requirements/bootstrap.txt requirements/dev.txt
# What `make quick` runs: folders of tests/unit whose subjects need neither Spark nor Kafka.
TESTS ?= tests/unit/services/common/model

# Prints a line with the elapsed time every three seconds while a silent command runs.
TIMED := @python3 -I dexorder/setup/timed.py

WRITABLE := @test -w . || { echo 'make: $(CURDIR) cannot be written, and make keeps .venv and its results there: clone into a folder of your own' >&2; exit 1; }

.PHONY: help quick setup-light setup classes spark-classes kafka-classes demo check check-types check-texts compiled-tests test coverage smoke helm nightly sim soak bench proto proto-baseline docs site wheel lock clean

help:  ## This list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

quick: setup-light  ## From a clone to tests of pure modules in seconds; TESTS=tests/unit/services/relay for others.
	$(PY) -m pytest -q $(TESTS)

setup-light: $(LIGHT)  ## .venv without Spark, jars, Java and linters: what `make quick` needs. `make setup` adds the rest.

setup: $(STAMP)  ## .venv with the locked packages, a Java runtime where there is none, Spark's and Kafka's jars.
	$(WRITABLE)
	@$(PY) -m dexorder.setup
	$(TIMED) 'native transport: compiling (once)' $(PY) native/build_http2.py
	@printf '#!/bin/sh\ncd "%s" && exec .venv/bin/python -m tests.simulation "$$@"\n' "$(CURDIR)" > .venv/bin/dexorder-sim
	@chmod +x .venv/bin/dexorder-sim
	$(TIMED) 'modules: compiling' $(PY) -m compileall -q dexorder services spark  # also where PYTHONDONTWRITEBYTECODE is set

.venv/bin/uv: requirements/bootstrap.txt
	$(WRITABLE)
	@test -x $(PY) || python3 -c 'import sys; sys.exit("Python 3.11 or newer is required, python3 is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(TIMED) 'Python environment: creating .venv' sh -c 'test -x $(PY) || python3 -m venv .venv'
	$(TIMED) 'uv: downloading' $(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

$(STAMP): $(LOCKS) pyproject.toml | .venv/bin/uv
	$(WRITABLE)
	$(TIMED) 'packages: downloading and installing (once, about 2 GB on disk)' .venv/bin/uv pip sync --quiet --compile-bytecode --require-hashes --strict --python $(PY) requirements/bootstrap.txt requirements/dev.txt
	$(TIMED) 'dexorder: installing from this folder' .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --python $(PY) -e .
	@touch $@ $(LIGHT)

$(LIGHT): requirements/bootstrap.txt requirements/light.txt pyproject.toml | .venv/bin/uv
	@if test -e $(STAMP); then $(MAKE) --no-print-directory $(STAMP); else \
	  $(subst @,,$(TIMED)) 'packages: downloading and installing (once)' \
	    .venv/bin/uv pip sync --quiet --require-hashes --strict --python $(PY) requirements/bootstrap.txt requirements/light.txt && \
	  $(subst @,,$(TIMED)) 'dexorder: installing from this folder' \
	    .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --python $(PY) -e .; fi
	@touch $@

classes: spark-classes kafka-classes  ## Keep Spark's and Kafka's classes beside .venv: a minute once, then each starts in two thirds of the CPU time.

spark-classes: setup
	@$(PY) -m dexorder_spark.runtime.class_archive

kafka-classes: setup
	@$(PY) -m dexorder.supervisor.kafka_archive

demo: setup  ## A faulty exchange, kill -9, and the difference to ccxt at the end; KEEP=1 leaves the suite running.
	@$(PY) -m dexorder.demo $(if $(KEEP),--keep)

check: check-types check-texts  ## Lint, types, protos.

check-types: setup
	mypy

check-texts: setup
	ruff format --check .
	ruff check .
	buf lint
	buf breaking --against tests/wire/baseline
	$(PY) protos/generate.py --check
	$(PY) protos/write_service_config.py --check
	$(PY) docs/write_settings.py --check
	$(PY) docs/write_limits.py --check
	$(PY) docs/write_exchanges.py --check
	$(PY) docs/site/build.py --check

compiled-tests: setup  # pytest rewrites each test once; without this every worker of a new clone does it
	$(PY) -m pytest --collect-only -qq > /dev/null 2>&1 || true  # `make test` shows what is wrong

test: classes  ## All tests but the long ones; a real Kafka and a real Spark, one of each.
	$(PY) -m pytest $(PARALLEL) --ignore=tests/nightly --ignore=tests/smoke -m "not smoke and not nightly and not soak"

COVERED ?= tests/unit --ignore=tests/unit/simulation
coverage: classes  ## Lines and branches of all packages that tests reach; COVERED=tests/unit/services/relay for some of them.
	$(PY) -m coverage erase
	$(PY) -m coverage run -m pytest -q $(PARALLEL) $(COVERED)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

# Three workers: each long group starts a suite of its own, and a suite that waits still takes a fifth of a core.
smoke: WORKERS := 3
smoke: classes  ## The whole suite as processes, each part killed once, and the other long tests.
	$(PY) -m pytest $(PARALLEL) -m "smoke and not nightly and not soak" \
	  tests/smoke tests/conformance tests/integration tests/newcomer

HELM_VERSION := v3.22.0
helm: setup  ## helm in .venv, compiled by Go where there is none: tests of the chart run only with it.
	@if command -v helm > /dev/null; then :; elif command -v go > /dev/null; then \
	  $(subst @,,$(TIMED)) 'helm: compiling (once)' env GOBIN=$(CURDIR)/.venv/bin go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION); \
	  else echo 'helm: neither helm nor Go is installed; tests of the chart are skipped'; fi

nightly: classes helm  ## Campaigns, new random examples, breaks, coverage, in 2 to 4 h; bench/results/nightly.md has the result. PARTS="a b" for some.
	$(PY) -m tests.nightly $(PARTS)

SEED ?= 0
sim: setup-light  ## Run a seed of the simulation in virtual time and print its story; SEED=17 PART=events for others.
	$(PY) -m tests.simulation $(SEED) --part $(or $(PART),history)

soak: classes  ## Long campaigns; results under bench/results.
	$(PY) -m pytest -s -m soak tests/nightly tests/integration/production

bench: setup  ## Measure; see bench/README.md for the single scripts.
	@ls bench/*.py

proto: setup  ## Write services/common/dexorder_protos from the protos.
	$(PY) protos/generate.py

docs: setup  ## Write docs/settings.md, docs/limits.md and the tables of docs/exchanges.md from the code.
	$(PY) docs/write_settings.py
	$(PY) docs/write_limits.py
	$(PY) docs/write_exchanges.py

site: setup  ## The documentation as a site in ./site.
	$(PY) docs/site/build.py

wheel: .venv/bin/uv  ## The package, in dist/; needs no `make setup`.
	$(WRITABLE)
	$(TIMED) 'wheel: building' .venv/bin/uv build --quiet --wheel --out-dir dist --python $(PY) --build-constraints requirements/build.txt --require-hashes .
	@ls dist/*.whl

proto-baseline:  ## At a release: our own protos become what no later version may break.
	$(PY) protos/write_baseline.py

lock:  ## Newest versions that fit, with hashes; then look at the diff.
	for name in bootstrap build services runtime dev light peer-numaflow peer-notebook; do .venv/bin/uv pip compile --quiet --upgrade --generate-hashes \
	  --no-emit-index-url --python-version 3.11 requirements/$$name.in -o requirements/$$name.txt; done
	for name in freqtrade hftbacktest nautilus; do .venv/bin/uv pip compile --quiet --upgrade --generate-hashes --no-header \
	  --no-emit-index-url --python-version 3.12 requirements/peer-$$name.in -o requirements/peer-$$name.txt; done
	.venv/bin/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --python-version 3.11 \
	  requirements/java.in -o dexorder/setup/java.txt

clean:  ## What the project made here; the jar cache stays.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dexorder-data demo-out site *.egg-info
