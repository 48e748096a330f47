# Everything runs in .venv; the first command of a fresh checkout makes it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# What the first answer needs, and what the tests need beyond that.
FIRST  := $(VENV)/.first
STAMP  := $(VENV)/.installed
# So many test files run side by side: two more than two cores have work for, since whoever tests a
# kernel waits for it half of the time. Browsers do not wait.
WORKERS ?= 4
BROWSERS ?= 2
# Hundreds of kernels and processes are started here; each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=
# A file's tests share its kernel; the files that wait come first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -q -p no:nbval
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Tests beside databases, servers and kernels of others, which need no environment of their own.
BESIDE := $(addprefix tests/,extras/acp extras/cluster extras/gateway extras/hub extras/mcp_server \
            extras/postgres tools/mcp faults/test_mcp.py e2e/test_older_kernel.py)

.PHONY: help demo test test-systems check lint types imports quick notebooks examples earlier recordings lab weights clean system \
        everything core house shape prose docs wheel release-check wheels-check \
        bench bench-loop bench-embedded bench-policy bench-sandbox bench-scan bench-memory bench-recall bench-hints \
        bench-harm bench-comfort \
        bench-context bench-bill bench-cells bench-map bench-mixture bench-schedule bench-skills bench-prompt bench-learning bench-load \
        bench-start bench-bridge bench-mcp bench-view bench-panel bench-replay bench-chaos bench-week bench-stops bench-mutants bench-postgres bench-trl bench-hub screenshots

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

EXTENSION := $(wildcard hermes_nb/notebook/labextension/*.json hermes_nb/notebook/labextension/static/* hermes_nb/notebook/labextension/schemas/*/*)

$(FIRST): pyproject.toml constraints.txt $(EXTENSION)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "hermes_nb needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); $(PYTHON) -m pip install -q --user virtualenv && $(PYTHON) -m virtualenv -q $(VENV); } \
	  || { echo "no virtual environment could be made; install your system's python3-venv"; exit 1; }
	@echo "setting up $(VENV) ..."
	@$(PIP) install -c constraints.txt -e '.[local]' pandas
	@touch $@

$(STAMP): $(FIRST)
	@echo "adding what the tests need ..."
	@$(PIP) install -c constraints.txt -e '.[dev,local,docs]'
	@touch $@

weights: $(FIRST)  ## fetch the embedded model's weights once (491 MB, kept in the user's cache)
	@HERMES_NB_FETCH_WEIGHTS=1 $(BIN)/python -m hermes_nb.models.weights

demo: $(FIRST) weights  ## run notebooks/01_first_turn.ipynb on the embedded model
	@$(BIN)/python notebooks/demo.py

# What the tests need of the system: a browser for the front ends, ripgrep for the faster search,
# bubblewrap for the sandbox, PostgreSQL for the store on a server.
system:
	@command -v chromium >/dev/null && command -v rg >/dev/null && command -v bwrap >/dev/null \
	  && ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null \
	    || { echo "install chromium, ripgrep, bubblewrap and postgresql to run the tests"; exit 1; }; \
	  SUDO=$$(test "$$(id -u)" = 0 || echo sudo); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq \
	    chromium ripgrep bubblewrap postgresql >/dev/null; }

# Bash says how long something took and what it cost, children and all.
test: $(STAMP) weights system  ## all checks, tests and notebooks but test-systems; how long that took
	@bash -c 'TIMEFORMAT="make test: %0lR of time, %0lU + %0lS of CPU"; time $(MAKE) --no-print-directory everything'

test-systems: $(STAMP) system  ## beside other systems, and in older applications in environments of their own
	@bash -c 'TIMEFORMAT="make test-systems: %0lR of time, %0lU + %0lS of CPU"; \
	  time $(PYTEST) $(SIDE_BY_SIDE) -n $(BROWSERS) --timeout 600 tests/systems $(BESIDE)'

# The documentation is built by tests/docs, with the options that `make docs` has.
everything:
	@$(MAKE) --no-print-directory -O -j 2 check
	@$(PYTEST) $(SIDE_BY_SIDE) --ignore=tests/e2e --ignore=tests/systems $(BESIDE:%=--ignore=%)
	@$(PYTEST) $(SIDE_BY_SIDE) -n $(BROWSERS) tests/e2e $(BESIDE:%=--ignore=%) --durations=10 --durations-min=5
	@$(MAKE) --no-print-directory -j 3 notebooks release-check

quick: $(STAMP)  ## the tests that need no kernel, no model and little time
	@$(PYTEST) $(SIDE_BY_SIDE) $(addprefix --ignore=tests/,e2e faults docs examples) \
	  --hypothesis-profile=quick -m 'not embedded and not kernel and not slow'

REPLAY = HERMES_HOME=$$(mktemp -d) $(BIN)/python -m pytest -q --nbval --hermes-replay \
  -p no:cacheprovider -W ignore

notebooks: examples earlier  ## replay the examples, and those of earlier versions, and compare (no model, no network)

examples: $(STAMP)
	@$(REPLAY) notebooks

earlier: $(STAMP)
	@$(REPLAY) tests/contract/data/notebooks --nbval-sanitize-with tests/contract/data/nbval.cfg

recordings: $(STAMP) weights  ## record the example notebooks anew: outputs and cassettes
	@$(BIN)/python notebooks/record.py $(NAMES)

docs: $(STAMP)  ## build the documentation into build/site; a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going -n -T -j 2 -c docs -d build/doctrees . build/site

check: lint types imports shape prose  ## ruff, mypy, layer contracts, signs of tangled structure, plain words

lint: $(STAMP)
	@$(BIN)/ruff check --quiet && $(BIN)/ruff format --check --quiet && echo "lint ok"

types: $(STAMP)
	@$(BIN)/mypy
	@cd bench && ../$(BIN)/mypy --config-file mypy.ini *.py

imports: $(STAMP)
	@$(BIN)/lint-imports --no-logo

shape: $(STAMP)
	@$(BIN)/python bench/house.py --stage check

CORE = $(addprefix tests/,agent contract models notebook tools) -m 'not embedded and not kernel and not slow'

core: $(STAMP)  ## without each extra and without all: imports, a turn; quick tests of agent, contract, models, notebook, tools (TESTS="tests/cli")
	@$(BIN)/python bench/core.py $(SIDE_BY_SIDE) --hypothesis-profile=quick $(or $(TESTS),$(CORE))

house: $(STAMP)  ## count the package and walk through its turns, against the limits of a stage (STAGE=bound)
	@$(BIN)/python bench/house.py $(if $(STAGE),--stage $(STAGE)) --walk

prose: $(STAMP)  ## the share of sentences that a reader stumbles over (bench/prose.py --list PATH prints them)
	@$(BIN)/python bench/prose.py

lab: $(STAMP)  ## open JupyterLab on the example notebooks
	@$(BIN)/jupyter lab notebooks

bench: $(STAMP)  ## the figures that have a limit, each with its verdict (AGAINST=v0.2.0)
	@$(BIN)/python bench/figures.py $(if $(AGAINST),--against $(AGAINST))

bench-loop: $(STAMP)  ## CPU of a tool iteration beside bare loops
	@$(BIN)/python bench/loop.py

bench-load: $(STAMP)  ## what %load_ext costs
	@$(BIN)/python bench/load.py

bench-start: $(STAMP)  ## how soon a turn starts, beside OpenAI's SDK
	@$(BIN)/python bench/start.py $(PARTS)

bench-memory: $(STAMP)  ## what storing a message costs, and how long searches take
	@$(BIN)/python bench/memory.py
	@$(BIN)/python bench/search_load.py $(SIZES)

bench-recall: $(STAMP)  ## how often a search finds the turn that answers a question
	@$(BIN)/python bench/recall.py

bench-context: $(STAMP)  ## what context engines cost, and what they keep
	@$(BIN)/python bench/context.py

bench-bill: $(STAMP)  ## what sessions are billed beside an ideal user of the prompt cache
	@$(BIN)/python bench/bill.py

bench-cells: $(STAMP)  ## what an open notebook adds to a bill, and whether its cells are sent correctly
	@$(BIN)/python bench/cells.py
	@$(BIN)/python bench/cells.py edits

bench-map: $(STAMP)  ## how many tasks with a tool a map does in a second, beside a bare thread pool
	@$(BIN)/python bench/maps.py

bench-mixture: $(STAMP)  ## what references beside an aggregator add to a turn's seconds
	@$(BIN)/python bench/mixture.py

bench-schedule: $(STAMP)  ## whether a thousand scheduled jobs run at most once each, through twenty kills
	@$(BIN)/python -m bench.schedule

bench-gateway: $(STAMP)  ## whether the gateway loses or doubles one of a thousand messages, through twenty kills
	@$(BIN)/python -m bench.gateway

bench-bridge: $(STAMP) system  ## how long calls to the open notebook take
	@$(BIN)/python bench/bridge.py

bench-embedded: $(STAMP) weights  ## how often the built-in model is right
	@$(BIN)/python bench/embedded.py

bench-policy: $(STAMP) system  ## the command policy on labelled commands, and what came of generated ones
	@$(BIN)/python bench/policy.py 50000

bench-scan: $(STAMP)  ## the injection scan on attacks and real files
	@$(BIN)/python bench/scan.py

bench-harm: $(STAMP)  ## what planted text brings about, by mode
	@$(BIN)/python bench/harm.py

bench-comfort: $(STAMP)  ## how often honest work is interrupted by a question
	@$(BIN)/python bench/comfort.py

bench-sandbox: $(STAMP) system  ## what the sandbox costs, and whether anything gets out
	@$(BIN)/python bench/sandbox.py

bench-hints: $(STAMP)  ## what looking for a hint costs a tool call
	@$(BIN)/python bench/hints.py

bench-skills: $(STAMP)  ## what a thousand skills cost, and how the guard does
	@$(BIN)/python bench/skills.py

bench-prompt: $(STAMP)  ## what a request costs before anybody has said a word
	@$(BIN)/python bench/prompt.py

bench-learning: $(STAMP)  ## when the agent looks back, and what that costs
	@$(BIN)/python bench/learning.py

bench-mcp: $(STAMP)  ## what twenty MCP servers cost a first turn, and idle; and other agents in a notebook
	@$(BIN)/python bench/mcp_servers.py
	@$(BIN)/python bench/mcp_servers.py door

bench-view: $(STAMP)  ## what showing a turn costs while it streams
	@$(BIN)/python bench/view.py

bench-panel: $(STAMP) system  ## how soon the panel is there
	@$(BIN)/python bench/panel.py

bench-replay: $(STAMP)  ## whether recordings replay in other zones, with other hash seeds, under -OO
	@$(BIN)/python bench/replay.py --notebooks

bench-chaos: $(STAMP)  ## turns while server, disk and processes fail at random (MINUTES=30)
	@$(BIN)/python bench/chaos.py --minutes $(or $(MINUTES),30)

bench-week: $(STAMP) system  ## 600 turns of ordinary use, the store away three times (STORES="sqlite postgres")
	@$(BIN)/python bench/week.py $(STORES)

bench-stops: $(STAMP)  ## how soon a stop ends a turn or a command, and what is kept
	@$(BIN)/python -m bench.stops

bench-hub: $(STAMP)  ## memory and time of users on a JupyterHub (USERS=20)
	@$(BIN)/python bench/hub.py $(USERS)

bench-postgres: $(STAMP) system  ## the store on PostgreSQL: writers, searches, recall (PARTS="search")
	@$(BIN)/python bench/postgres.py $(PARTS)

bench-trl: $(STAMP)  ## whether exported sessions train a model
	@$(BIN)/python bench/trl.py

bench-mutants: $(STAMP) system  ## whether the tests notice broken lines of guard, loop, store, context and undo
	@$(BIN)/python bench/mutants.py $(ROOMS)

screenshots: $(STAMP) system  ## take the guide's pictures again
	@HERMES_NB_GUIDE_IMAGES=1 $(BIN)/python -m pytest -q tests/e2e/test_guide.py

wheel: $(STAMP)  ## build the wheel and the sdist into dist/
	@$(BIN)/python -m build --no-isolation

release-check: $(STAMP)  ## install the wheel into a clean environment and look at it (PYTHONS="python3.13 ...")
	@$(BIN)/python .ci/release_check.py $(PYTHONS)

wheels-check: $(STAMP)  ## see that no dependency needs a compiler, for each Python and system
	@$(BIN)/python .ci/wheels_check.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
