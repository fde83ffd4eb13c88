# Start with `make demo` or `make test`. Both create .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs release bench bench-mcu fuzz clean

demo: $(VENV)/.installed
	$(BIN)/python examples/digits/demo.py --out build
	@echo "Next, a model of your own: $(BIN)/mlfc check MODEL, $(BIN)/mlfc compile MODEL"
	@echo "or this one on an emulated Cortex-M4: $(BIN)/mlfc run examples/digits/digits_int8.tflite --board mps2-an386"

# TEST_FLAGS: for pytest
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TEST_FLAGS) tests

check: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks examples docs fuzz release
	$(BIN)/ruff format --check src tests benchmarks examples docs fuzz release
	$(BIN)/mypy
	$(BIN)/codespell src tests benchmarks examples docs fuzz release README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/python -m pytest tests/tiny
	$(MAKE) docs

# the site of docs/ in build/site, without network; links that lead nowhere are errors
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# what is uploaded to package indexes, in dist/: built, then installed and tried in empty environments
release: $(VENV)/.dev
	$(BIN)/python release/check.py dist

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# models x boards, compared with TensorFlow Lite Micro: make bench-mcu BOARDS="mps2-an385 qemu-riscv32"
bench-mcu: $(VENV)/.dev
	$(BIN)/python -m benchmarks mcu $(if $(BOARDS),--boards $(BOARDS))

# readers of archives and models on random input, kernels of all compilers on random chains, random graphs:
# FUZZ_SECONDS=600 make fuzz, or FUZZ_MUTANTS=20000 make fuzz
fuzz: $(VENV)/.dev
	$(BIN)/python -m fuzz --seconds $(or $(FUZZ_SECONDS),60) $(if $(FUZZ_MUTANTS),--mutants $(FUZZ_MUTANTS))

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	touch $@

# most of what these packages bring is never imported: Python compiles the rest when it is
$(VENV)/.dev: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e ".[dev]"
	touch $(VENV)/.installed $@
