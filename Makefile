# make demo     install into .venv, build the engine, train on the digits over lockstep and gloo
# make test     the tests that a change needs, against the working tree
# make check    lint, types, make test: what CI runs
# make full     every test but the slow ones
# make help     the rest

PYTHON ?= python3

# A PYTHON that is named is the one that is used: beside a .venv of another version it gets an
# environment of its own, .venv-3.12, and nothing is thrown away.
ifneq ($(filter command environment,$(firstword $(origin PYTHON))),)
  OTHER := $(shell sh scripts/other_python.sh '$(PYTHON)' '$(or $(VENV),.venv)')
endif
ifneq ($(OTHER),)
  ifeq ($(origin VENV),undefined)
    VENV := .venv-$(OTHER)
    $(info .venv has another Python than $(PYTHON): using $(VENV))
  else ifneq ($(MAKECMDGOALS),clean)
    $(error $(VENV) has another Python than $(PYTHON), $(OTHER): give another VENV, or run make clean VENV=$(VENV))
  endif
endif
VENV ?= .venv
ARCH ?= x86_64 aarch64
# Of make test, each with a file of tests at a time: tests wait for much of their time.
WORKERS ?= 6
BIN  := $(VENV)/bin

# Everything that ends up in the installed package. Directories are in the list so that a removed
# file counts as a change.
SOURCES := pyproject.toml README.md LICENSE $(shell find src native -name __pycache__ -prune -o \
	-not -name '*.pyc' -not -name '*.so' -not -path 'native/tests*' -print)

.DELETE_ON_ERROR:
.PHONY: help demo test full examples check lint types format docs browse figures slow soak versions versions-corners wheel clean

help:
	@echo 'make demo      install into $(VENV), build the engine, run the main job over lockstep and gloo'
	@echo 'make test      the tests that a change needs, against the working tree'
	@echo 'make check     lint, types and test: what CI runs'
	@echo 'make full      every test but the slow ones: before a release (half an hour)'
	@echo 'make lint      ruff, spelling and words, the listings of pages, clang-format, the table of MPI names, and actionlint if it is installed'
	@echo 'make types     pyright'
	@echo 'make examples  the examples alone (make test has 3 of them)'
	@echo 'make slow      sanitizer builds, fuzzing, large benchmarks, the pages in Chromium (many minutes)'
	@echo 'make soak      random programs on random layouts, compared with NumPy: MINUTES=60 SEED=1; or faults: FAULTS=500'
	@echo 'make versions  a part of the tests under every supported Python and jax (docs/reference/versions.md)'
	@echo 'make wheel     manylinux wheels into dist/, built by zig, for each of ARCH'
	@echo 'make format    rewrite the sources, and the listings of pages, as lint wants them'
	@echo 'make figures   draw the figures of the documentation from benchmarks/results/'
	@echo 'make docs      build the documentation site into site/'
	@echo 'make browse    open its pages in headless Chromium, on a desktop and a phone, light and dark'
	@echo 'make clean     remove everything that make made'
	@echo 'Variables: PYTHON=python3 (3.11 or later), VENV=.venv, CXX=the C++ compiler,'
	@echo '           ARCH="x86_64 aarch64" (the wheels), WORKERS=6 (tests at the same time)'
	@echo 'With PYTHON=python3.12 beside a .venv of another version, VENV is .venv-3.12'

demo: $(VENV)/.installed-demo
	$(BIN)/python scripts/demo.py

# Python keeps what it has compiled, also where a variable forbids it: every worker and the
# thousand interpreters that the tests start would compile the tests and lockstep again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  --hypothesis-profile=quick

full: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'not slow'

examples: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'not slow' tests/examples

check: lint types test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python scripts/prose.py
	$(BIN)/python scripts/listings.py --check
	find native -name '*.cc' -o -name '*.h' | xargs -r $(BIN)/clang-format --dry-run -Werror
	$(BIN)/python scripts/generate_abi.py --check
	@if command -v actionlint >/dev/null; then actionlint; \
	else echo 'No actionlint here: the workflows are checked by tests.yml alone.'; fi

types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python scripts/listings.py
	find native -name '*.cc' -o -name '*.h' | xargs -r $(BIN)/clang-format -i

slow: $(VENV)/.installed-dev $(VENV)/.installed-wheel
	$(BIN)/python -m pytest -m slow --timeout 1800
	@if command -v chromium >/dev/null; then $(MAKE) browse; \
	else echo 'No chromium here: the pages were not opened (make browse).'; fi

# Random programs on random layouts, each result compared with NumPy; with FAULTS=500 trainings that
# meet so many faults (docs/design/soak.md).
MINUTES ?= 60
SEED ?= 1
soak: $(VENV)/.installed-dev
	$(BIN)/python $(if $(FAULTS),tests/soak/chaos.py --faults $(FAULTS),tests/soak/run.py --minutes $(MINUTES)) --seed $(SEED)

wheel: $(VENV)/.installed-wheel
	$(BIN)/python scripts/wheel.py $(ARCH)

versions: $(VENV)/.installed-dev
	$(BIN)/python scripts/versions.py

# The oldest jax on the oldest Python and the newest on the newest: what CI runs after check.
versions-corners: $(VENV)/.installed-dev
	$(BIN)/python scripts/versions.py --corners

figures: $(VENV)/.installed-dev
	$(BIN)/python scripts/figures.py

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

browse: docs
	$(BIN)/python scripts/browse.py

clean:
	rm -rf $(VENV) .venv-3.* build dist site .pytest_cache .ruff_cache .hypothesis

# CMake's build directory stays in build/, so only changed files are compiled again. An environment
# that is there installs with its own Python, whatever python3 is by now.
INSTALLER := $(or $(wildcard $(BIN)/python),$(PYTHON))
define install
@PYTHON='$(INSTALLER)' sh scripts/preflight.sh
@$(INSTALLER) scripts/install.py --venv '$(VENV)' --extras
endef

$(VENV)/.installed-demo: $(SOURCES) scripts/install.py
	$(install) examples
	@touch $@

$(VENV)/.installed-dev: $(SOURCES) scripts/install.py
	$(install) dev,examples,bench,mpi,notebook,data
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: $(SOURCES) scripts/install.py
	$(install) docs
	@touch $@

$(VENV)/.installed-wheel: $(SOURCES) scripts/install.py
	$(install) wheel
	@touch $@
