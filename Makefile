# Everything that one does with a checkout of weft. The environment is made on first use; `make help` lists the rest.
#
# `.venv` has the newest Python of the machine with the newest JAX; `.venv-floor` the oldest that weft supports, Python
# 3.11 with JAX 0.10. `make quick-floor` uses the second, everything else the first.
#
#   PYTHON=python3.12 make test    another interpreter (3.12 or newer) for a new .venv
#   make test ARGS='-k vmap'       arguments for pytest, and for the example in `make demo`
#   make test JOBS=4               processes for pytest

VENV := .venv
FLOOR := .venv-floor
BIN := $(VENV)/bin
ARGS ?=
N ?= 1000
JOBS ?= logical
PINS := constraints.txt pyproject.toml

.PHONY: help demo demo-lm test test-slow quick quick-floor test-debug fuzz fuzz-records flax-suite flax-guides jaxtyping-suite check-field \
    check-field-floor field-nnx lint format typecheck reading bench docs docs-serve pages wheel sdist release \
    freeze clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo       train a ConvNet on the digits, and write a figure and a checkpoint to out/'
	@echo 'make demo-lm    train a small GPT on the standard library, and let it write'
	@echo 'make test       run the tests, but for the slow ones'
	@echo 'make test-slow  run the slow ones: proofs of whole corpora, whole programs, many processes'
	@echo 'make quick      run the tests that matter most, in two minutes: interpreter, transforms, matcher'
	@echo 'make quick-floor run these with the oldest Python and JAX that weft supports'
	@echo 'make test-debug run the tests of records with lost successors and reused keys as errors'
	@echo 'make fuzz N=5000 compare random programs under flax.nnx and weft.nnx'
	@echo 'make fuzz-records N=2000 compare random programs over records with plain JAX'
	@echo 'make flax-suite run flax'\''s own tests of NNX over weft.nnx'
	@echo 'make flax-guides run the code cells of flax'\''s published guides over weft.nnx'
	@echo 'make jaxtyping-suite run jaxtyping'\''s own tests over weft'\''s checker'
	@echo 'make check-field judge released packages that annotate with jaxtyping, by what is known of them'
	@echo 'make check-field-floor the same with the oldest Python, for packages that ask for an old JAX'
	@echo 'make field-nnx  use packages built on flax.nnx under flax and weft, and compare'
	@echo 'make lint       ruff check and ruff format --check'
	@echo 'make format     let ruff mend what it can'
	@echo 'make typecheck  pyright over the installed wheel, strict on core and the transforms'
	@echo 'make reading    print how many files and calls of weft one behaviour passes through'
	@echo 'make bench      run the benchmarks and append a section to benchmarks/RESULTS.md'
	@echo 'make docs       build the site into site/, strictly: a broken link fails'
	@echo 'make docs-serve show the site, and build it again as one writes'
	@echo 'make pages      run the code of every page with only the extras that the page names'
	@echo 'make wheel      build dist/*.whl, the same bytes for the same commit'
	@echo 'make sdist      build dist/*.tar.gz, likewise'
	@echo 'make release    try wheel and sdist in fresh environments of each Python, and compare the public names with the last'
	@echo 'make freeze     write constraints.txt anew from fresh environments of both ends'
	@echo 'make clean      remove what was built, but not the environments'

demo: $(VENV)/stamp-train
	$(BIN)/python examples/digits.py $(ARGS)

demo-lm: $(VENV)/stamp-train
	$(BIN)/python examples/char_lm.py $(ARGS)

test: $(VENV)/stamp-test
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -m 'not slow' $(ARGS)

# Some of these open pages in a browser.
test-slow: $(VENV)/stamp-dev
	$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -m slow $(ARGS)

QUICK := -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal -m 'not slow and not wide' --hypothesis-profile=quick

quick: $(VENV)/stamp-test
	$(BIN)/python $(QUICK) $(ARGS)

quick-floor: $(FLOOR)/stamp-test
	$(FLOOR)/bin/python $(QUICK) $(ARGS)

# What loses a successor or uses a key twice in these tests does so on purpose, and says it. Much of them is eager. The
# slow ones run once, in `test-slow`; ARGS='-m ""' runs them in these modes, too.
test-debug: $(VENV)/stamp-test
	WEFT_DEBUG_SUCCESSORS=1 WEFT_DEBUG_KEYS=1 $(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist worksteal \
	    -m 'not slow' -W 'ignore:debug_successors cannot follow' tests/core tests/modules tests/transforms tests/examples $(ARGS)

fuzz: $(VENV)/stamp-test
	$(BIN)/python tests/nnx/fuzz.py $(N) $(ARGS)

fuzz-records: $(VENV)/stamp-test
	$(BIN)/python tests/records/fuzz_records.py $(N) $(ARGS)

flax-suite: $(VENV)/stamp-test
	$(BIN)/python tests/nnx/flax_suite.py $(ARGS)

flax-guides: $(VENV)/stamp-test
	$(BIN)/python tests/nnx/flax_guides.py $(ARGS)

jaxtyping-suite: $(VENV)/stamp-test
	$(BIN)/python tests/typecheck/jaxtyping_suite.py $(ARGS)

check-field: $(VENV)/stamp-test
	$(BIN)/python tests/typecheck/field/field.py $(ARGS)

check-field-floor: $(FLOOR)/stamp-test
	$(FLOOR)/bin/python tests/typecheck/field/field.py $(or $(ARGS),gpjax)

field-nnx: $(VENV)/stamp-test
	$(BIN)/python tests/nnx/field/field.py $(ARGS)

lint: $(VENV)/stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/stamp-dev wheel
	.ci/typecheck $(BIN)

reading: $(VENV)/stamp-test
	$(BIN)/python tests/reading.py $(ARGS)

bench: $(VENV)/stamp-test
	$(BIN)/python benchmarks/run.py $(ARGS)

docs: $(VENV)/stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

docs-serve: $(VENV)/stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve $(ARGS)

pages:
	.ci/pages $(ARGS)

wheel: $(VENV)/stamp-train
	.ci/wheel $(BIN)

sdist: $(VENV)/stamp-dev
	.ci/sdist $(BIN)

release: $(VENV)/stamp-dev
	$(MAKE) wheel
	$(MAKE) sdist
	.ci/release $(BIN) $(ARGS)

freeze:
	.ci/freeze

clean:
	rm -rf build dist site out *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# The stamp of a set of extras is written after pip has finished, so an interrupted install is never taken for a whole one.
$(VENV)/stamp-%: $(PINS) .ci/install
	.ci/install $(VENV) $* newest

$(FLOOR)/stamp-%: $(PINS) .ci/install
	.ci/install $(FLOOR) $* floor
