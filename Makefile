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
setup: $(SETUP)  ## make .venv with everything the other targets need

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
	$(PY) -m tools.shape --check
	$(PY) -m pytest --quiet tests/test_docs.py

# One worker more than there are processors: some tests wait for processes.
.PHONY: test
test: $(SETUP)  ## all tests but those of `make compat`
	$(PY) -m pytest --numprocesses $$(($$(nproc) + 1)) --dist loadgroup --ignore tests/compat tests

.PHONY: compat
compat: $(SETUP)  ## public clients (Python, Java, Go, Node, Spring, Camel, Flink …) against a real broker
	$(PY) tests/compat/run.py $(if $(PEER),--peer $(PEER)) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(PROXY),--proxy) $(foreach client,$(CLIENT),--client $(client))

.PHONY: fuzz
fuzz: $(SETUP)  ## random bytes for the parser, random requests for the admin port
	$(PY) tests/fuzz/fuzz_parser.py --seconds $(or $(FUZZ_SECONDS),600)
	PENSTOCK_API_CASES=$(or $(FUZZ_CASES),50) $(PY) -m pytest --quiet --timeout 3600 tests/admin/test_openapi.py

.PHONY: crash
crash: $(SETUP)  ## kill -9 under load, and simulated disk faults, many times
	$(PY) tests/crash/run.py --rounds $(or $(CRASH_ROUNDS),200)
	$(PY) tests/crash/usage.py --rounds $(or $(CRASH_USAGE_ROUNDS),50)
	$(PY) tests/crash/brokers.py --rounds $(or $(CRASH_BROKER_ROUNDS),20)
	$(PY) tests/crash/proxies.py --rounds $(or $(CRASH_PROXY_ROUNDS),20) $(if $(PEER),--peer $(PEER))
	$(PY) tests/crash/proxies.py --rounds $(or $(CRASH_PROXY_ROUNDS),20) --account $(if $(PEER),--peer $(PEER))
	$(PY) tests/crash/proxy_churn.py --seconds $(or $(CRASH_CHURN_S),300)
	$(PY) tests/crash/faults.py --cases $(or $(CRASH_CASES),2000)
	PENSTOCK_FAULT_SEEDS=$(or $(CRASH_CASES),2000) $(PY) -m pytest --quiet tests/storage/test_catalog_faults.py

.PHONY: jepsen
jepsen: $(SETUP)  ## brokers, a proxy and clients while processes, disks, clocks and lines fail
	$(PY) -m tests.jepsen.run --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED),--write) $(if $(TRANSACTIONS),--transactions --seconds 30)

.PHONY: mutants
mutants: $(SETUP)  ## small changes of ten model files, which their tests must notice
	$(PY) -m tests.mutation.run --mutants $(or $(MUTANTS),25) --seed $(or $(SEED),1) $(if $(FILE),--file $(FILE))

.PHONY: soak
soak: $(SETUP)  ## two hours in which everything comes and goes: nothing may grow
	$(PY) -m tests.soak.run --minutes $(or $(MINUTES),120) $(if $(SAMPLES),--samples $(SAMPLES))

.PHONY: sim
sim: $(SETUP)  ## simulations by seed: permits, brokers, quotas, advice
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
spark: $(SETUP)  ## Spark streams whose driver, broker and executors are killed
	$(PY) tests/spark/driver_kills.py --messages $(or $(SPARK_MESSAGES),1000000) --kills $(or $(SPARK_KILLS),20)
	$(PY) tests/spark/driver_kills.py --into topic --cluster --partitions 64 --messages $(or $(SPARK_MESSAGES),1000000) --kills $(or $(SPARK_KILLS),22) $(if $(PEER),--peer $(PEER))

.PHONY: sparks
sparks: $(SETUP)  ## the tests of Spark with another version of Spark
	$(PY) tests/spark/with_version.py $(or $(VERSION),4.2.1)

.PHONY: flood
flood: $(SETUP)  ## 1,000 connections of large frames against a small pool under a hard memory limit
	$(PY) -m benchmarks.flood

.PHONY: abuse
abuse: $(SETUP)  ## attacks with each command, field and route on a broker of 256 MB
	$(PY) -m tests.abuse.run $(ABUSE)

.PHONY: evade
evade: $(SETUP)  ## players with a tenant's rights against each limiter
	$(PY) -m tests.evade.run --plays $(or $(PLAYS),1000) $(if $(LIMITER),--limiter $(LIMITER)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(BROKERS),--brokers $(BROKERS)) $(if $(PROXY),--proxy) $(if $(SEED)$(LIMITER)$(BROKERS)$(PROXY),,--write)

.PHONY: bench
bench: $(SETUP)  ## the table of loads, and a page with plots, in 10 minutes
	$(PY) -m benchmarks.run $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE)) $(if $(LOADS),--loads '$(LOADS)')

.PHONY: clients
clients: $(SETUP)  ## Java's and Go's clients at full speed
	$(PY) -m benchmarks.official_clients $(if $(PEER),--peer $(PEER)) $(if $(BEFORE),--before $(BEFORE))

.PHONY: measure
measure: $(SETUP)  ## everything else that is measured; takes long
	$(PY) -m benchmarks.footprint $(if $(PEER),--peer $(PEER))
	$(PY) -m benchmarks.listings $(if $(PEER),--peer $(PEER))
	$(PY) -m benchmarks.transactions $(if $(PEER),--peer $(PEER))
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
demo: $(if $(CORE),$(DEMO_CORE),$(DEMO))  ## the real flights of 2013 through a broker, a flood, and Spark
	$(PY) examples/flights.py $(if $(CORE),--core)

.PHONY: docs
docs: $(SETUP)  ## rewrite the generated parts of docs/reference, and the dashboards
	$(PY) -m tools.write_reference
	$(PY) -m tools.dashboards

.PHONY: changelog
changelog: $(SETUP)  ## print the changelog of the next release, made from the fragments in changes/
	$(PY) -m towncrier build --draft --version next

.PHONY: release
release: $(SETUP)  ## build, try and tag VERSION=0.1.0; without it build and try only
	$(PY) -m tools.release $(or $(VERSION),--check)

.PHONY: platforms
platforms: $(SETUP)  ## where penstock and its extras install from wheels alone
	$(PY) -m tools.platforms $(if $(WRITE),--write)

.PHONY: shape
shape: $(SETUP)  ## print the figures of the house, and the places that stand out
	$(PY) -m tools.shape

.PHONY: clean
clean:  ## remove what was built, the environment included
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
