# Everything happens in .venv; `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo test check soundness docs outputs package bench models paper paper-sample clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: install
	$(BIN)/softhull demo --out out/demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One thread per worker: the tests run side by side, file by file, so that what the tests of a file share is made once.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not paper"

# An hour of trying to break every bound in exact arithmetic, then a million forged certificates on all cores; a short
# form is part of the tests. Prints its seeds.
soundness: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soundness

# The paper's networks and recorded results, from the folder SOFTHULL_PAPER_DIR names: all of them, or a fixed sample.
paper: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m paper

paper-sample: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "paper and not slow"

# The documentation as a site in site/; every warning is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Runs the code in the documentation and writes what it prints, and its pictures, into the pages.
outputs: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.documents

# The release in dist/: the wheel is built from the sdist. Both are installed, with the smallest set of extras that runs
# `softhull verify`, into an environment of their own, where every command works or says in one line what is missing.
package: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.environments cli,onnx

bench: install
	$(BIN)/python -m benchmarks

# Models of torch, transformers and timm by their default exports; rewrites the table in docs/models.md. timm comes
# without torchvision, which it needs for data sets only and whose wheel does not load beside the CPU wheel of torch.
models: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[models]'
	$(BIN)/python -m pip install --quiet --no-deps 'timm>=1.0'
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks models

clean:
	rm -rf .venv out build dist site
