# SPDX-License-Identifier: Apache-2.0
# Every command a developer needs. `make` alone prints them. All of them set the environment up first, in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
SETUP := .venv/.setup
DEMO := .venv/.demo
DEMO_CORE := .venv/.demo-core
# What changed since the setup is compiled once, not by each process that a test starts.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## print the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)$$/  make \1\t\2/' | expand -t 18

.PHONY: setup
setup: $(SETUP)  ## make .venv with everything the other targets need (only Python 3.11 or later must be present)

# The stamp is older than pyproject.toml whenever the requirements may have changed; otherwise there is nothing to do.
$(SETUP): pyproject.toml
	@test -x $(PY) || tools/make_venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(PY) -m compileall -q src  # as pip does for a wheel: where Python may not write, each start would compile anew
	@touch $@

# Nothing but what the demo itself needs: it may be the first thing somebody tries.
$(DEMO): pyproject.toml
	@test -x $(PY) || tools/make_venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[demo,spark]'
	@touch $@

$(DEMO_CORE): pyproject.toml
	@test -x $(PY) || tools/make_venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

.PHONY: fmt
fmt: $(SETUP)  ## format the code
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

.PHONY: check
check: $(SETUP)  ## lint, types, import contracts and documentation, as CI does
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m pytest --quiet tests/test_docs.py

# One worker more than there are processors: some tests wait for processes.
.PHONY: test
test: $(SETUP)  ## all tests but those of `make compat`
	$(PY) -m pytest --numprocesses $$(($$(nproc) + 1)) --dist loadgroup --ignore tests/compat tests

.PHONY: compat
compat: $(SETUP)  ## public clients (Python, Java, Go, Node) against a real broker; PEER=pulsar: against Apache Pulsar; BROKERS=3: several; PROXY=1: through a proxy
	$(PY) tests/compat/run.py $(if $(PEER),--peer $(PEER)) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(PROXY),--proxy) $(foreach client,$(CLIENT),--client $(client))

.PHONY: fuzz
fuzz: $(SETUP)  ## ten minutes of random bytes for the parser (FUZZ_SECONDS); then requests to the admin port (FUZZ_CASES)
	$(PY) tests/fuzz/fuzz_parser.py --seconds $(or $(FUZZ_SECONDS),600)
	PENSTOCK_API_CASES=$(or $(FUZZ_CASES),50) $(PY) -m pytest --quiet --timeout 3600 tests/admin/test_openapi.py

.PHONY: crash
crash: $(SETUP)  ## kill -9 under load, 200 times (CRASH_ROUNDS), while usage is counted 50 times (CRASH_USAGE_ROUNDS), of one of three brokers 20 times, behind two proxies (PEER=pulsar: of Apache Pulsar's), and behind a proxy with 1,000 connections for CRASH_CHURN_S=300; then simulated disk faults, 2,000 cases (CRASH_CASES)
	$(PY) tests/crash/run.py --rounds $(or $(CRASH_ROUNDS),200)
	$(PY) tests/crash/usage.py --rounds $(or $(CRASH_USAGE_ROUNDS),50)
	$(PY) tests/crash/brokers.py --rounds $(or $(CRASH_BROKER_ROUNDS),20)
	$(PY) tests/crash/proxies.py --rounds $(or $(CRASH_PROXY_ROUNDS),20) $(if $(PEER),--peer $(PEER))
	$(PY) tests/crash/proxy_churn.py --seconds $(or $(CRASH_CHURN_S),300)
	$(PY) tests/crash/faults.py --cases $(or $(CRASH_CASES),2000)
	PENSTOCK_FAULT_SEEDS=$(or $(CRASH_CASES),2000) $(PY) -m pytest --quiet tests/storage/test_catalog_faults.py

.PHONY: jepsen
jepsen: $(SETUP)  ## real brokers, a proxy and clients while processes, disks, clocks and lines fail, by seed, for ten minutes (MINUTES=60 for a release; SEED=7: one)
	$(PY) -m tests.jepsen.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED),--write)

.PHONY: sim
sim: $(SETUP)  ## simulations by seed: permits (SIM_CASES), the whole broker (SIM_SEEDS; SEED=123 repeats one), several (SIM_BROKERS_SEEDS), quotas (SIM_QUOTAS), advice (SIM_ADVISED_DAYS)
	PENSTOCK_SIM_ADVISED_DAYS=$(or $(SIM_ADVISED_DAYS),100) PENSTOCK_SIM_CASES=$(or $(SIM_CASES),10000) PENSTOCK_SIM_SEEDS=$(or $(SIM_SEEDS),1000) \
	  $(if $(SEED),PENSTOCK_SIM_SEED=$(SEED)) $(PY) -m pytest --quiet --numprocesses auto --timeout 3600 \
	  tests/governance/test_permits_properties.py tests/governance/test_request_memory_properties.py \
	  tests/governance/test_quota_advice.py tests/simulation \
	  tests/broker/test_administrators_at_once.py tests/broker/test_clients_at_once.py
	PENSTOCK_SIM_SEEDS=$(or $(SIM_BROKERS_SEEDS),100) $(if $(SEED),PENSTOCK_SIM_SEED=$(SEED)) \
	  $(PY) -m pytest --quiet --numprocesses auto --timeout 3600 tests/broker/test_administrators_of_brokers.py
	$(PY) -m tests.simulation.throttle_table --write
	$(PY) -m tests.simulation.quota_table --write --random $(or $(SIM_QUOTAS),500)

.PHONY: spark
spark: $(SETUP)  ## Spark streams into files and into a topic, whose driver, broker and executors are killed (SPARK_MESSAGES, SPARK_KILLS)
	$(PY) tests/spark/driver_kills.py --messages $(or $(SPARK_MESSAGES),1000000) --kills $(or $(SPARK_KILLS),20)
	$(PY) tests/spark/driver_kills.py --into topic --cluster --partitions 64 --messages $(or $(SPARK_MESSAGES),1000000) --kills $(or $(SPARK_KILLS),20)

.PHONY: sparks
sparks: $(SETUP)  ## tests/spark with another version of Spark (VERSION=4.2.1)
	$(PY) tests/spark/with_version.py $(or $(VERSION),4.2.1)

.PHONY: flood
flood: $(SETUP)  ## 1,000 connections of large frames against a small pool under a hard memory limit
	$(PY) -m benchmarks.flood

.PHONY: abuse
abuse: $(SETUP)  ## attacks with each command, field and route on a broker of 256 MB (ABUSE='--cases 0' for all; --help)
	$(PY) -m tests.abuse.run $(ABUSE)

.PHONY: evade
evade: $(SETUP)  ## players with a tenant's rights against each limiter, 1,000 plays each at one broker, three and a proxy (PLAYS); LIMITER=, BROKERS=3, PROXY=1: some; SEED=123: one
	$(PY) -m tests.evade.run --plays $(or $(PLAYS),1000) $(if $(LIMITER),--limiter $(LIMITER)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(BROKERS),--brokers $(BROKERS)) $(if $(PROXY),--proxy) $(if $(SEED)$(LIMITER)$(BROKERS)$(PROXY),,--write)

.PHONY: bench
bench: $(SETUP)  ## the table of loads, and a page with plots, in 10 minutes; PEER=pulsar: beside Apache Pulsar, in 25; BEFORE=DIR: beside another checkout
	$(PY) -m benchmarks.run $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE)) $(if $(LOADS),--loads '$(LOADS)')

.PHONY: clients
clients: $(SETUP)  ## Java's and Go's clients at full speed; needs Java, mvn and go; PEER=pulsar, BEFORE=DIR as for bench
	$(PY) -m benchmarks.official_clients $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE))

.PHONY: measure
measure: $(SETUP)  ## everything else that is measured: memory, listings, Spark, throttling, delayed messages; takes long
	$(PY) -m benchmarks.footprint $(if $(PEER),--peer $(PEER))
	$(PY) -m benchmarks.listings $(if $(PEER),--peer $(PEER))
	$(PY) -m benchmarks.micro
	$(PY) -m benchmarks.spark
	$(PY) -m benchmarks.spark_streams
	$(PY) -m benchmarks.throttling backlog
	$(PY) -m benchmarks.throttling memory
	$(PY) -m benchmarks.throttling calm
	$(PY) -m benchmarks.delayed
	$(PY) -m benchmarks.delayed_delivery --strict $(if $(PEER),--peer $(PEER) --messages 20000 --publish-per-s 2500)
	$(PY) -m benchmarks.delayed_delivery --restart --messages 1000000

.PHONY: retained
retained: $(SETUP)  ## start-up time and memory with 1 and 10 million retained entries
	$(PY) -m benchmarks.retained

.PHONY: demo
demo: $(if $(CORE),$(DEMO_CORE),$(DEMO))  ## the real flights of 2013 through a broker, a flood, and Spark; CORE=1: without Spark
	$(PY) examples/flights.py $(if $(CORE),--core)

.PHONY: docs
docs: $(SETUP)  ## rewrite the generated parts of docs/reference, and the dashboards
	$(PY) -m tools.write_reference
	$(PY) -m tools.dashboards

.PHONY: changelog
changelog: $(SETUP)  ## print the changelog of the next release, made from the fragments in changes/
	$(PY) -m towncrier build --draft --version next

.PHONY: shape
shape: $(SETUP)  ## print long files and functions, and circular imports
	$(PY) tools/shape.py

.PHONY: clean
clean:  ## remove what was built, the environment included
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
