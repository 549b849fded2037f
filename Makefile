# Everything happens in .venv, which is made when it is first needed. PYTHON chooses the interpreter it is made with.
#
#   make demo        train a small model, evaluate it, look at its attention
#   make test        lint, types and the tests
#   make learn       train the recipes to their stated scores (minutes); learn-full: those of images and sound at full size
#   make soak        a thousand calls of threads at once (a minute)
#   make bench       time regard beside other programs; `.venv/bin/python -m benchmarks --help` lists what WHAT may be
#   make install     make .venv with everything in it; lint, clean and wheelhouse are the other targets

PYTHON ?= python3
WORKERS ?= 2
WHAT ?= translate
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := install
.DELETE_ON_ERROR:
.PHONY: install demo test pytest learn learn-full soak bench lint clean wheelhouse

install: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "regard needs Python 3.11 or newer, and $(PYTHON) is not one;" \
	         "name another, for instance: make install PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,marian]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/regard demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

# Lint and types are checked while the tests run.
test: $(STAMP)
	$(MAKE) --jobs=2 --no-print-directory lint pytest

# Two processes with one thread each: the tests' models are too small for threads to help.
pytest: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist worksteal

# As many trainings at once as there are workers, each with one thread.
learn: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m learn -rP -n $(WORKERS) --dist loadgroup

learn-full: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m learn_full -rP -n $(WORKERS) --dist loadgroup

soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m soak

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(WHAT)

clean:
	rm -rf build dist wheelhouse *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf "$${TMPDIR:-/tmp}"/regard-tiny-runs-*
	find regard tests -name __pycache__ -type d -prune -exec rm -rf {} +

# For a machine without a package index, but with torch, tokenizers, safetensors, sacrebleu and matplotlib: what else
# regard imports, unpacked, at the versions installed here, without what it does not need of them.
# There: PYTHONPATH=.:wheelhouse python3 -m regard train dates train.tensorboard=false
TARGET := --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64
MISSING := annotated-doc annotated-types babel cffi faster-coco-eval jiwer pycparser pydantic pydantic-core pygments rapidfuzz \
    rich shellingham soundfile typer typing-inspection
UNUSED := -name '*.pyi' -o -path '*/lexers/_*_builtins.py' \
    -o -path '*/locale-data/*.dat' ! -name 'root*' ! -name 'en*' ! -name 'de*' ! -name 'fr*' ! -name 'it*'

wheelhouse: $(STAMP)
	rm -rf wheelhouse build/wheels build/wheelhouse
	mkdir -p build/wheels
	$(BIN)/python -m pip freeze --exclude-editable > build/versions.txt
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: $(TARGET) \
	    -c build/versions.txt -d build/wheels $(MISSING)
	set -e; for wheel in build/wheels/*.whl; do $(BIN)/python -m zipfile -e $$wheel build/wheelhouse; done
	find build/wheelhouse -type f \( $(UNUSED) \) -delete
	mv build/wheelhouse wheelhouse
	@du -sh wheelhouse
