# make train: set up, start a local Ray head if none runs, submit the quickstart job, follow it.
# make test:  set up and run all tests. Both do the set-up themselves, and at no cost when it is done.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ifndef RUN
# Expanded at once: the name that is printed and the run's own would differ where a second ends between them.
RUN := quickstart-$(shell date +%Y%m%d-%H%M%S)
endif
ARGS ?=
DATABASE ?= $(HOME)/rl_cluster/mlflow.db
# A folder of wheels that holds the CPU build of torch is preferred; elsewhere uv takes it from PyTorch's own index.
TORCH := $(if $(wildcard $(PIP_FIND_LINKS)/torch-*cpu*.whl),,--torch-backend cpu)
UV := UV_FIND_LINKS="$(PIP_FIND_LINKS)" $(BIN)/uv pip

# Every process of a run and of the tests would otherwise compile this project's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train search-cpu test test-unit lint format ui clean setup lock

train: setup
	@echo "run $(RUN); after an interruption continue it with: make train RUN=$(RUN)$(if $(ARGS), ARGS=(as now))"
	$(BIN)/python -m rl_cluster.launch experiment=quickstart run_name=$(RUN) $(ARGS)

search-cpu: setup
	$(BIN)/python -m rl_cluster.launch experiment=search_cpu $(ARGS)
	$(BIN)/python -m rl_cluster.evaluate run_name=search_cpu_systems limit=60 temperature=1.0 reference=before \
	  search=short evaluation/drift=[suite] \
	  +system@systems.before=model systems.before.path=$(HOME)/rl_cluster/search_cpu/start \
	  +system@systems.after=model systems.after.path=$(HOME)/rl_cluster/search_cpu/final
	mkdir -p benchmarks/results/search_cpu benchmarks/results/search_cpu_systems
	cp $(HOME)/rl_cluster/search_cpu/report.* benchmarks/results/search_cpu
	cp $(HOME)/rl_cluster/search_cpu_systems/report.* benchmarks/results/search_cpu_systems

test: setup
	$(BIN)/python -m pytest tests/unit -n 2 -m "not slow and not cluster"
	$(BIN)/python -m pytest tests -n 2 --dist loadfile --no-loadscope-reorder -m "slow or cluster"

test-unit: setup
	$(BIN)/python -m pytest tests/unit -n 2 -m "not slow and not cluster"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

ui: setup
	$(BIN)/mlflow ui --host 127.0.0.1 --backend-store-uri sqlite:///$(DATABASE)

setup: $(STAMP)

$(STAMP): requirements-cpu.lock overrides.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(UV) install --quiet --compile-bytecode --python $(BIN)/python $(TORCH) --overrides overrides.txt -r requirements-cpu.lock
	$(BIN)/python -m rl_cluster.models.source
	touch $(STAMP)

# Pins everything again after a change of pyproject.toml.
lock: setup
	$(UV) compile --quiet --python $(BIN)/python $(TORCH) \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  --overrides overrides.txt --extra cpu --extra test pyproject.toml -o requirements-cpu.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis outputs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
