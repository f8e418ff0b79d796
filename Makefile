# `make demo` trains a small GPT and shows what it learned; `make test` runs the tests. Both need Python 3.11 or
# newer and nothing else: they make a virtual environment in .venv.

PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test clean

demo: .venv/train
	rm -rf runs/demo
	$(BIN)/python examples/train_gpt.py --data toy-world --out runs/demo
	@echo
	$(BIN)/python examples/generate.py runs/demo --prompt "今天天气真好，我想去" --top 5 --max-new-tokens 40 --temperature 0.8 --seed 2
	@echo
	@echo "The picture of the loss: runs/demo/loss.png"

test: .venv/test
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2 tests --ignore=tests/parity

.venv/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none was found" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/train: .venv/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[train]'
	@touch $@

.venv/test: .venv/python pyproject.toml
	$(BIN)/python -m pip install -q -e '.[test]'
	@touch $@

clean:
	rm -rf .venv build dist runs
