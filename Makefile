# Two commands do all the set-up: `make demo` and `make test`. They build a virtual environment of their own in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# One thread a worker: two workers with two threads each would fight over two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

SLURM  := tests/cluster/slurm.sh

# What `make demo` translates: lines of its test split.
PHRASES = "The shy king dreams that the bear will pick up the giant this evening." \
          "The bakery is open from quarter past six until ten o'clock on Saturdays." \
          "A knight would like six cups of tea and seven plates of apples."

.PHONY: install demo test test-cluster check lint typed fast wheel clean

install: $(STAMP)

# torch first and pinned: a range would let the package index choose a build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install            ## train a small translator on generated phrases, score it, translate three phrases
	$(BIN)/tkit train +recipe=demo
	$(BIN)/tkit evaluate -m runs/demo
	printf '%s\n' $(PHRASES) | $(BIN)/tkit translate -m runs/demo
	@echo 'source .venv/bin/activate makes it `tkit` here'

test: install            ## every test, the slow ones included
	$(PYTEST)

check: lint typed fast   ## lint, types, floors, fast tests

lint: install
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

# mypy reads an installed copy: there cli/, conf/ and recipes/ stand inside the package.
typed: install
	@rm -rf build/typed build/lib && mkdir -p build/typed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target build/typed .
	cd build/typed && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p transformer_kit

fast: install
	$(PYTEST) -m "not slow and not cluster"

# Needs root and Debian's packages. The trap stops what was started, however the tests end.
test-cluster: install    ## a real Slurm on this machine: a run, two nodes, a sweep, preemption
	@trap '$(SLURM) stop' EXIT; $(SLURM) start && export SLURM_CONF=$$($(SLURM) conf) OMP_NUM_THREADS=1 && \
	  $(BIN)/python -m pytest tests/cluster -m cluster

wheel: install
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache *.egg-info
