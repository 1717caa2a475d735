# Two commands do everything, set-up included, in .venv inside this folder:
#
#   make run     train on digits with no noise, Dropout and RotationOut; results in out/
#   make test    lint, types, tests, documentation; then the core once more with torch alone
#
# They need Python 3.11 or newer, and make test a C++ compiler (torch.compile uses it).
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv-core/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests run side by side, a file at a time; each process has one thread.
JOBS ?= 2
PYTEST := -m pytest -q -n $(JOBS) --dist loadfile
test: export OMP_NUM_THREADS := 1
# A check that fails does not hide what the others find.
MAKEFLAGS += --keep-going

.PHONY: run test lint types suite kernels core docs bench clean

run: .venv/ready
	$(BIN)/rotationout demo

test: lint types suite kernels core

suite: .venv/ready
	$(BIN)/python $(PYTEST)

# The kernels, by Triton's interpreter.
kernels: .venv/ready
	TRITON_INTERPRET=1 $(BIN)/python $(PYTEST) --dist load tests/test_triton.py tests/test_triton_sums.py tests/test_triton_draws.py tests/test_triton_plane.py tests/test_step_kernels.py tests/test_narrow*.py

# The core, with torch alone.
core: .venv-core/ready
	$(CORE)/python $(PYTEST) -p no:cacheprovider tests/core src/rotationout --ignore-glob='*/cli/*' --ignore-glob='*/experiments/*' --ignore-glob='*/linear/*' --ignore-glob='*/report/*'

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

# The site, in out/docs; make test builds it too, as a test.
docs: .venv/ready
	$(BIN)/python -m sphinx -W --keep-going -n -q -d out/doctrees docs out/docs

bench: .venv/ready
	$(BIN)/rotationout bench

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all]'
	touch $@

# The core needs torch alone: another torch and no extras.
.venv-core/ready: pyproject.toml
	$(PYTHON) -m venv .venv-core
	$(CORE)/python -m pip install -q torch==2.13.0 pytest pytest-xdist hypothesis
	$(CORE)/python -m pip install -q -e .
	touch $@

clean:
	rm -rf .venv .venv-core out .mypy_cache .pytest_cache .ruff_cache .hypothesis
