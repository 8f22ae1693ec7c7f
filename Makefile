# The commands of this project; each makes .venv and installs what is locked when it has to.
#
#   make demo     tune ResNet-18 for this machine's CPU, compile it, evaluate it, write a report
#   make test     all tests                  (make test ARGS="tests/run -k journal" for some)
#   make lint     lint, format check and type check
#   make format   format the code and apply safe fixes
#   make lock     pin the dependencies of pyproject.toml anew, for every Python version
#   make clean    remove .venv and caches; never the runs

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

DEMO_RUN ?= runs/demo-resnet18
DEMO_TARGET ?= llvm
# Whichever is reached first ends the tuning.
DEMO_TRIALS ?= 640
DEMO_SECONDS ?= 300

# The first interpreter that runs and is one of ours: a name on PATH may be a shim of a version
# manager that answers with an error.
PYTHON ?= $(shell for name in python3.12 python3.11 python3.13 python3.10 python3 python; do \
	if "$$name" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
		2>/dev/null; then echo "$$name"; break; fi; done)

.PHONY: demo test lint format lock clean install
.DELETE_ON_ERROR:

install: $(VENV)/.installed

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.10, 3.11, 3.12 or 3.13 found: install one, or name it: make PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2; \
		exit 1; }

# The stamps are written last: an installation that was cut off is done again.
$(VENV)/.locked: requirements.lock requirements-models.txt | $(BIN)/python
	@echo "Installing the locked dependencies into $(VENV) (once; about 1.4 GB)"
	@$(BIN)/python -m pip install --quiet --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --ignore-requires-python --requirement requirements-models.txt
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.locked
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# A second demo goes on where the first one was cut off; one whose budget is spent (exit code 2) is
# only evaluated again.
demo: install
	@if [ -e $(DEMO_RUN)/manifest.json ]; then \
		$(BIN)/autotune-nb resume $(DEMO_RUN) || [ $$? -eq 2 ]; \
	else \
		$(BIN)/autotune-nb tune resnet-18 --layout NHWC --batch-size 1 --dtype float32 \
			--target $(DEMO_TARGET) --trials $(DEMO_TRIALS) --seconds $(DEMO_SECONDS) \
			--run $(DEMO_RUN); \
	fi
	@$(BIN)/autotune-nb evaluate $(DEMO_RUN)
	@echo "The run is in $(DEMO_RUN)"

test: install
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One file for all versions of Python: packages that dropped an old one are pinned once for each.
lock: install
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra dev --upgrade \
		--no-emit-index-url --custom-compile-command "make lock" \
		pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
