# Every target sets up what it needs: `make test` and `make demo` work on a fresh machine with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow soak mutants lint format docs bench clean

demo: $(STAMP)
	$(BIN)/densecal demo --out demo

# the many processes that tests start share bytecode, also where the environment says not to write it
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

# property tests with new examples; damaged and malicious files, kills of commands and at every file operation, with the
# counts printed; about ten minutes on two quiet cores
soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --hypothesis-profile=searching -m hypothesis
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.fuzz --cases 10000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak.kills --kills 200

# changes the source in 200 places, one at a time: at least 92 % must make a test fail; about an hour
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# spelling and style first
docs: $(STAMP)
	$(BIN)/codespell README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs src examples
	$(BIN)/proselint check --config .proselint.json README.md docs/*.md docs/howto/*.md
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)
	$(BIN)/python -W ignore benchmarks/metrics.py; first=$$?; $(BIN)/python benchmarks/startup.py || first=1; $(BIN)/python benchmarks/training.py && exit $$first

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/densecal/*/_*.[ch])
	$(PYTHON) -c 'import sys; sys.exit("densecal needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@echo "Installing densecal and what it needs into $(VENV), about 6 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,train,export,integrations,medical,geo,zarr,docs,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo build dist site .mutants
