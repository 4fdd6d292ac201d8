# On a fresh machine:
#   make demo        set up, then record, train, kill, resume, validate and roll out (5 to 7 minutes on 2 cores)
#   make test        set up, then formatting, types and the tests: 24 minutes on 2 cores
#   make test-long   the same with all long tests: before a release
#   make test-client test-data test-tools   the tests of a distribution with its own needs alone, in .venv-client and so on
#   make docs        the documentation site, in site/
# They need Linux with glibc, Python 3.11+, git and make; everything else goes into .venv. With a C compiler (cc), small
# images decode a fifth faster.

PY := .venv/bin/python
# One thread per process: on a busy machine a second OpenMP thread can cost a factor of a hundred.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: setup demo test test-long test-client test-data test-tools lint types pytest pytest-long docs wheels soak compat clean

setup: .venv/.installed-dev

.venv/.installed-%: pyproject.toml $(wildcard packages/*/pyproject.toml) constraints.txt scripts/setup packages/understudy-data/hatch_build.py hatch_readme.py packages/understudy-data/src/understudy_data/video/native/loops.c
	scripts/setup $*

demo: .venv/.installed-demo
	$(PY) -m understudy demo

test: setup lint types pytest

test-long: setup lint types pytest-long

# The number is the least of tests that pass, so that none vanishes unseen.
test-client: setup
	scripts/test-wheel client 435

test-data: setup
	scripts/test-wheel data 1500

test-tools: setup
	scripts/test-wheel tools 1250

# The long forms, about an hour: copy their output into lab/journal/reliability.md. The tests have short forms.
soak: setup
	$(PY) lab/benchmarks/soak_loader.py --minutes 30 --kills 1000
	$(PY) lab/benchmarks/soak_trainer.py --kills 100

# Test other releases of Python, torch, PyAV, NumPy and LeRobot (10 GB, some twenty minutes); writes lab/journal/compatibility.md.
compat: setup
	$(PY) scripts/compat.py

lint:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

types:
	$(PY) -m mypy
	$(PY) -m mypy --python-version 3.10 packages/understudy-base/src packages/understudy-client/src

# Every worker imports 500 modules. Compiled ones are kept, also where the environment says otherwise.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n 2 --dist worksteal --durations=10 --durations-min=5

pytest:
	$(PYTEST) -m "not long"

pytest-long:
	$(PYTEST) --hypothesis-profile=long

# Packages of the extra `docs` go into .venv, too.
docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build # with --quiet it would ignore warnings, which end it

# The files of a release in dist/, checked: sources, wheels for Linux on x86-64 and aarch64, one for any system, and the
# kit for loaders.
wheels:
	scripts/wheels

# Remove all build products. Recordings and trained runs in runs/ stay.
clean:
	rm -rf .venv .venv-* .compat dist site .hypothesis .pytest_cache .ruff_cache .mypy_cache
