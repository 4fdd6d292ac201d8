# Two commands on a fresh machine:
#   make demo   sets everything up, then records, trains, kills, resumes, validates and rolls out (about 5 minutes on 2 cores)
#   make test   sets everything up, then formatting, types and tests
# Both need Python 3.11+, git, make and a C library; everything else goes into .venv. With a C compiler (cc), small
# pictures decode a fifth faster.

PY := .venv/bin/python
# One thread per process: on a busy machine a second OpenMP thread can cost a factor of a hundred.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.PHONY: wheels setup demo test soak compat lint types pytest clean

setup: .venv/.installed-dev

.venv/.installed-%: pyproject.toml constraints.txt scripts/setup hatch_build.py hatch_readme.py src/understudy/video/native/loops.c
	scripts/setup $*

demo: .venv/.installed-demo
	$(PY) -m understudy demo

test: setup lint types pytest

# The long forms (about an hour): what they print belongs into docs/reliability.md. Short forms are among the tests.
soak: setup
	$(PY) benchmarks/soak_loader.py --minutes 30 --kills 1000
	$(PY) benchmarks/soak_trainer.py --kills 100

# Other releases of Python, torch, PyAV, NumPy and LeRobot (10 GB, some twenty minutes): writes docs/compatibility.md.
compat: setup
	$(PY) scripts/compat.py

lint:
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .

types:
	$(PY) -m mypy

pytest:
	$(PY) -m pytest -n 2

# The source distribution, a compiled and a pure wheel into dist/, each installed and imported once.
wheels:
	scripts/wheels

# What was built here, and nothing that was recorded or trained: runs/ stays.
clean:
	rm -rf .venv .compat dist .hypothesis .pytest_cache .ruff_cache .mypy_cache
