# Each target bootstraps its own .venv from nothing but python3.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# An installation compiles, too; after a change of a source that alone is done.
INSTALL := $(BIN)/python -m pip install -q --upgrade pip && $(BIN)/python -m pip install -q -e '.[test,check,spark,sail]'
COMPILE := $(BIN)/python -W ignore -c 'from setuptools import setup; setup()' -q build_ext --inplace

# Three workers for two cores, since tests wait for programs and servers; tests/conftest.py says so to
# pytest-xdist, and shares the tests out.
PYTEST := $(BIN)/python -m pytest -q -n auto

# What goes through a plane; it is tested on the one in Python too (where legs with TLS always are), on threads,
# and with nothing compiled.
RELAYED := tests/net tests/rules tests/differential tests/testing tests/replay tests/cli tests/admin

# They pass in any environment, and as any user.
ANYWHERE := $(PYTEST) -m "not long and not spark" --ignore=tests/test_shape.py
ROOT := $(filter 0,$(shell id -u))

# Tests start a hundred programs and several workers: these are to find modules compiled, whatever the
# environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast check check-long fuzz coverage bench fix clean

$(STAMP): pyproject.toml $(shell find natsproxy -name "*.pyx" -o -name "*.pxd")
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "natsproxy needs Python 3.11 or later"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 1; }
	$(if $(filter pyproject.toml,$?),$(INSTALL),$(COMPILE))
	@$(BIN)/python -c 'from natsproxy.wire.scanner import COMPILED; print("scanner:", "compiled" if COMPILED else "pure Python (no C compiler was found: everything works, only slower)")'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python deploy/demo.py

# The shape of the sources is a matter of `make check`.
test: $(STAMP)
	$(PYTEST) -m "not long" --ignore=tests/test_shape.py

test-fast: $(STAMP)
	$(PYTEST) -m "not long and not spark" --ignore=tests/test_shape.py

check: $(STAMP)
	$(BIN)/ruff format --check natsproxy tests
	$(BIN)/ruff check natsproxy tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_shape.py

check-long: $(STAMP)
	$(PYTEST) -m long
	NATSPROXY_PLANE=python $(PYTEST) -m "not long" $(RELAYED)
	NATSPROXY_PLANE=python $(PYTEST) -m long tests/net tests/differential --ignore=tests/net/tls
	NATSPROXY_PLANE_THREADS=2 $(PYTEST) -m "not long" $(RELAYED) tests/capture
	NATSPROXY_PLANE_THREADS=2 $(PYTEST) -m long tests/net tests/differential tests/rules tests/testing tests/capture --ignore=tests/net/tls
	NATSPROXY_PURE=1 $(PYTEST) -m "not long" $(RELAYED)
	env TERM=dumb $(ANYWHERE)
	env NO_COLOR=1 $(ANYWHERE)
	env FORCE_COLOR=1 $(ANYWHERE)
	env -u LC_ALL LANG=C $(ANYWHERE)
	env CI=true $(ANYWHERE)
	env TZ=Pacific/Auckland $(ANYWHERE)
	env -i PATH="$$PATH" HOME="$$HOME" $(ANYWHERE)
	$(if $(ROOT),unshare --user --map-user=1000 --map-group=1000 $(ANYWHERE))

# What was found last time is in the folder; it is where the next time begins.
FUZZ ?= build/fuzz
SECONDS ?= 1800

fuzz:
	rm -rf $(FUZZ)/tree
	sh tests/fuzz/build.sh $(abspath $(FUZZ)) $(SECONDS)

coverage: $(STAMP)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n auto -m "not long"
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

bench: $(STAMP)
	@for bench in tests/benchmarks/bench_*.py; do PYTHONPATH=. $(BIN)/python $$bench || exit 1; done

fix: $(STAMP)
	$(BIN)/ruff format natsproxy tests
	$(BIN)/ruff check --fix natsproxy tests

clean:
	rm -rf $(VENV) build *.egg-info .coverage*
