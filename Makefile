# Everything starts here: `make demo` needs Python 3.11 or newer, g++ and a package registry, nothing else.
# PYTHON=python3.12 chooses the interpreter of a new virtual environment, MODEL=DIR the model of `serve` and `demo`.

VENV := .venv
BIN := $(VENV)/bin
PACKAGES := $(VENV)/packages.stamp
BUILT := $(VENV)/build.stamp
DOCS := build/docs-venv
WHEEL := build/wheel-venv
INSPECTOR := build/inspector
FRAMEWORKS := build/frameworks
DEPLOY := build/deploy-venv
ROUTERS := build/routers
NATIVE := $(wildcard csrc/*.cpp csrc/*.hpp csrc/*.h)
MODEL ?= smollm2
ARGS ?=

.PHONY: help setup demo first-receipt test fleet speculation servers replicas simulator soak worst-step sanitize audit vllm-matrix windows drafters families train learned-loop eval-learner fuzz respell templates told explorations clients examples inspector serve lint evidence evidence-quick evidence-check gpu gpu-on-cpu bench docs wheel deploy clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(PACKAGES): requirements/cpu.lock requirements/install.sh
	@PYTHON="$(PYTHON)" requirements/install.sh packages $(VENV)
	@touch $@

$(BUILT): $(PACKAGES) pyproject.toml setup.py $(NATIVE)
	@requirements/install.sh build $(VENV)
	@touch $@

setup: $(BUILT) ## make .venv with the pinned packages and the C++ extension

demo: setup ## fold, go on, restore on a real model, with a table of what it cost
	@$(BIN)/acmserve demo $(if $(filter-out smollm2,$(MODEL)),--model $(MODEL)) $(ARGS)

first-receipt: ## time `make demo` in a fresh clone with empty caches, from the first package to the first receipt
	@$(or $(PYTHON),python3) -m benchmarks.demo.first_receipt --json benchmarks/results/first-receipt.json $(ARGS)

# Tests that one process has rewritten are read by the others, and by the next run.
test: export PYTHONDONTWRITEBYTECODE :=
# Threads of one engine that spin while they wait would take the cores from the other process.
test: export OMP_WAIT_POLICY ?= passive
# On two cores, a third process works while others wait for a server that starts.
test: setup $(FRAMEWORKS)/packages.stamp ## run the whole test suite, in three processes that share no engine
	@$(BIN)/python -m pytest --numprocesses 3 --durations 15 $(ARGS)

$(FRAMEWORKS)/packages.stamp: requirements/frameworks.lock | $(PACKAGES)
	@$(BIN)/python -m venv --clear $(FRAMEWORKS)
	@$(FRAMEWORKS)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/frameworks.lock
	@touch $@

fleet: export OMP_WAIT_POLICY ?= passive
fleet: setup ## test two workers, two pipeline stages, two and four engines, two API servers, and a tier of host memory
	@ACMSERVE_FLEET=1 $(BIN)/python -m pytest tests/engine/test_pipeline.py tests/engine/test_replicas.py \
		tests/server/app/test_isolation.py tests/server/launch/test_api_servers.py tests/server/launch/test_tier.py \
		tests/server/siblings/test_two_api_servers.py $(ARGS)

speculation: export ACMSERVE_SPECULATION ?= 10000
speculation: setup ## compare 10,000 drafted and verified tokens with those of exact
	@$(BIN)/python -m pytest tests/server/speculation/test_http.py -s $(ARGS)

servers: export ACMSERVE_SERVERS ?= 1
servers: export OMP_WAIT_POLICY ?= passive
servers: setup ## hand a session to a second server, and kill a benchmark with a real one
	@$(BIN)/python -m pytest tests/server/context/test_hand_over.py tests/bench/trace/test_killed.py $(ARGS)

replicas: export ACMSERVE_REPLICAS ?= 1
replicas: setup $(ROUTERS)/ray.stamp ## test two servers behind Ray Serve, vllm-router, and what else is there: haproxy, build/routers/stack-env
	@PATH="$$PATH:$(CURDIR)/$(ROUTERS)/ray-env/bin" $(BIN)/python -m pytest -rs tests/docs/test_scale.py $(ARGS)

$(ROUTERS)/ray.stamp: requirements/routers.lock | $(PACKAGES)
	@$(BIN)/python -m venv --clear $(ROUTERS)/ray-env
	@$(ROUTERS)/ray-env/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement requirements/routers.lock
	@touch $@

simulator: export ACMSERVE_SIMULATOR_FACTOR ?= 25
simulator: setup ## drive vLLM's schedulers through 25 times as many random scripts as the suite does
	@$(BIN)/python -m pytest --numprocesses 2 tests/simulator $(ARGS)

soak: export ACMSERVE_SOAK_MINUTES ?= 30
soak: setup ## half an hour of sessions on a small pool: each answer is checked, each block comes back
	@$(BIN)/python -m pytest tests/engine/test_soak.py tests/server/chat/test_storm.py $(ARGS)

worst-step: export ACMSERVE_WORST_STEP_MINUTES ?= 60
worst-step: setup ## search an hour for what one client can add to a step at 128K tokens
	@$(BIN)/python -m pytest tests/simulator/test_worst_step.py tests/server/app/test_victim.py $(ARGS)

clients: export ACMSERVE_CLIENTS ?= 1
clients: setup ## install real agents from the registries, drive each by our server, and write the table
	@$(BIN)/python -m pytest tests/clients $(ARGS)

examples: export ACMSERVE_EXAMPLES ?= 1
examples: export OMP_WAIT_POLICY ?= passive
examples: setup ## run every example and adapter against our server, in environments without vLLM
	@$(BIN)/python -m pytest tests/clients/test_examples.py $(ARGS)

$(INSPECTOR)/packages.stamp: $(PACKAGES) requirements/inspector.lock
	@$(BIN)/python -m pip install --quiet --target $(INSPECTOR) --upgrade --requirement requirements/inspector.lock
	@touch $@

inspector: export ACMSERVE_INSPECTOR ?= 1
inspector: export PYTHONPATH := $(CURDIR)/$(INSPECTOR)
inspector: setup $(INSPECTOR)/packages.stamp ## drive the page /acm/ in this machine's Chromium, with ten thousand messages and axe-core
	@$(BIN)/python -m pytest tests/server/inspector $(ARGS)

sanitize: setup ## test the C++ extension with address and undefined-behaviour sanitizers
	@csrc/sanitize.sh $(VENV) $(ARGS)

audit: setup ## measure the keys of every decoder class of vLLM that can be built on a CPU
	@ACMSERVE_AUDIT=1 $(BIN)/python -m pytest tests/engine/test_audit.py $(ARGS)

vllm-matrix: setup ## run seams, simulator and audit on each tested release of vLLM, and its engines where it has some
	@ACMSERVE_RELEASES=1 $(BIN)/python -m pytest -v tests/engine/vllm/test_releases.py $(ARGS)

windows: setup ## move KV and states in every layer of every shape of model, with a control for each
	@ACMSERVE_WINDOWS=1 $(BIN)/python -m pytest tests/engine/worker/test_windows.py tests/engine/models/test_recurrent_moves.py \
		tests/engine/models/test_recurrent_float32.py tests/engine/models/test_state_space_moves.py tests/engine/models/test_deep_layers.py $(ARGS)

drafters: setup ## moves beside an EAGLE head, an MTP module and a draft model, an engine each
	@ACMSERVE_DRAFTERS=all $(BIN)/python -m pytest tests/engine/models/test_drafter_layers.py $(ARGS)

families: setup ## start each family of models that people serve, small and random, and write the table of them
	@$(BIN)/acmserve bench families --json benchmarks/results/families.json $(ARGS)
	@$(BIN)/acmserve bench report docs/compatibility.md

train: setup ## train SmolLM2 to fold where it helps, on this CPU, and judge it on tasks that it has not seen
	@$(BIN)/acmserve bench learner --json benchmarks/results/learner.json --plot benchmarks/results/learner.png $(ARGS)
	@$(BIN)/python -m pytest tests/bench/learner/test_learned_loop.py

learned-loop: export ACMSERVE_LEARNED_LOOP ?= 1
learned-loop: setup ## test the tool loop with a model that decides by itself, trained here where `make train` left none
	@$(BIN)/python -m pytest tests/bench/learner/test_learned_loop.py $(ARGS)

eval-learner: export OMP_WAIT_POLICY ?= passive
eval-learner: setup ## the table of tasks and ways on the model of `make train`, which is trained first where there is none
	@$(BIN)/acmserve bench learner --train-only
	@$(BIN)/acmserve bench eval --model learner --json benchmarks/results/eval-learner.json $(ARGS)

fuzz: export ACMSERVE_FUZZ_FACTOR ?= 50
fuzz: setup ## send 5,000 hostile bodies to every route of generation, 500 cases to each documented one, and edit 2,500 sessions
	@$(BIN)/python -m pytest tests/server/app/test_fuzz.py tests/server/routes/test_hand_over.py \
		tests/server/routes/test_openapi.py tests/context/session/test_machine.py \
		tests/context/precompute/test_planner.py tests/context/eviction/test_cwl.py \
		tests/context/alignment/test_redacted_text.py tests/plan/pacing/test_pacer.py $(ARGS)

respell: export ACMSERVE_RESPELL_FACTOR ?= 50
respell: setup ## resend fifty times as many sessions in the words of other clients as the suite does
	@$(BIN)/python -m pytest --numprocesses 2 tests/context/alignment/test_respellings.py $(ARGS)

templates: export ACMSERVE_TEMPLATE_TURNS ?= 10000
templates: setup ## ten thousand turns of random agents under budgets, with twelve chat templates, and count them
	@$(BIN)/python -m pytest tests/server/budget/test_templates.py $(ARGS)

told: export ACMSERVE_TOLD_EDITS ?= 1000
told: setup ## a thousand random edits with three chat templates: what is told of them is what the prompt does
	@$(BIN)/python -m pytest --numprocesses 2 -s tests/server/budget/test_told_savings.py $(ARGS)

explorations: export ACMSERVE_EXPLORATIONS ?= 5000
explorations: setup ## five thousand explorations under the default budget of 80K tokens, every tenth prompt counted
	@$(BIN)/python -m pytest tests/context/eviction/test_long_sessions.py $(ARGS)

serve: setup ## start the OpenAI-compatible server with SmolLM2, or with MODEL=DIR
	@$(BIN)/acmserve serve $(MODEL) $(ARGS)

lint: setup ## ruff and mypy --strict
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy -p acmserve

evidence: export OMP_WAIT_POLICY ?= passive
evidence: setup ## measure every result into bench-results/evidence; ARGS="--max-minutes 170" is one sitting, the next goes on
	@$(BIN)/acmserve bench reruns --run --results bench-results/evidence $(ARGS)

evidence-quick: export OMP_WAIT_POLICY ?= passive
evidence-quick: setup ## the README's times in 15 minutes; fail where ratios to stock differ, never on another kind of processor
	@mkdir -p bench-results
	@$(BIN)/acmserve bench edit --kinds fold --max-minutes 14 --json bench-results/edit-cpu.json $(ARGS)
	@$(BIN)/acmserve bench ledger --beside bench-results

evidence-check: setup ## fail while a result is older than the code that it measures
	@$(BIN)/acmserve bench ledger --check $(ARGS)

gpu: ## measure all that one CUDA card can tell in 45 minutes; without vLLM the moves alone. ARGS='--device cpu' tries it
	@mkdir -p bench-results
	@$(or $(PYTHON),python3) -m benchmarks.gpu.suite --json bench-results/gpu.json $(ARGS)

gpu-on-cpu: setup ## try each stage of that suite on a tiny model without a card, folds in fp8 among them
	@ACMSERVE_GPU=1 $(BIN)/python -m pytest tests/bench/gpu/test_suite.py $(ARGS)

bench: setup ## time to first token after an edit, beside a stock engine
	@$(BIN)/acmserve bench edit $(ARGS)

$(DOCS)/packages.stamp: requirements/docs.lock
	@$(or $(PYTHON),python3) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --requirement requirements/docs.lock
	@touch $@

docs: $(DOCS)/packages.stamp ## build the pages of docs/ into build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

$(WHEEL)/packages.stamp: requirements/wheel.lock
	@$(or $(PYTHON),python3) -m venv $(WHEEL)
	@$(WHEEL)/bin/pip install --quiet --requirement requirements/wheel.lock
	@touch $@

wheel: $(WHEEL)/packages.stamp ## build the sdist and from it a manylinux wheel, into dist/
	@requirements/install.sh wheel $(WHEEL)

$(DEPLOY)/packages.stamp: requirements/deploy.lock
	@$(or $(PYTHON),python3) -m venv $(DEPLOY)
	@$(DEPLOY)/bin/pip install --quiet --requirement requirements/deploy.lock
	@touch $@

deploy: setup $(DEPLOY)/packages.stamp ## check deploy/: schemas, alarms, and a Prometheus that scrapes a server
	@PATH="$$PATH:$(CURDIR)/$(DEPLOY)/bin" $(BIN)/python -m pytest tests/deploy $(ARGS)

clean: ## remove the virtual environment and everything built (prepared models stay in the cache)
	rm -rf $(VENV) build dist *.egg-info acmserve/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
