# make demo and make test need nothing but Python 3.10 to 3.13; both make .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
WILD := .venv-wild
WILD_READY := $(WILD)/.ready
WILD_NEEDS := models/bench/wild_cases/requirements.txt
WILD_NEEDS_ALONE := models/bench/wild_cases/requirements-alone.txt

# make gpu-check takes the interpreter that PYTHON names as it is, without .venv, if one is named.
# Beyond tfmem's own dependencies it needs absl-py and tf-keras; the extra models has them.
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(RUN),$(PYTHON))
OUT ?= out/gpu

.PHONY: demo test versions wild lint results gpu-check simgpu docs dist clean

demo: $(READY)
	$(RUN) -m models.demo

test: $(READY)
	$(RUN) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

# The core of the tests with each Python and TensorFlow, in environments that are deleted again;
# make versions ONLY=3.11:2.16,3.13:2.21 takes some of them.
versions:
	$(PYTHON) -m tests.versions $(if $(ONLY),--only=$(ONLY))

# Other libraries' train steps under hard limits, hours of them; make wild ONLY=hugging_face takes
# some. Its environment has libraries that tfmem does not need.
wild: $(WILD_READY)
	nice -n 5 $(WILD)/bin/python -m models.bench.wild $(if $(ONLY),--only=$(ONLY))

results: $(READY)
	$(RUN) -m models.bench all

gpu-check: $(if $(filter file,$(origin PYTHON)),$(READY))
	$(GPU_PYTHON) $(if $(SIMULATED),$(ON_SIMULATED)) -m models.bench gpu --out=$(OUT) \
		$(if $(SIMULATED),$(SMALLER)) $(if $(ONLY),--only=$(ONLY))

# A GPU in the place of a real one, and sizes of models that it takes in minutes.
ON_SIMULATED := -m tests.simgpu.run
SMALLER := --config=small --limit=1GiB --seconds=3000

simgpu: $(READY)
	@echo "export TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$$($(RUN) -m tests.simgpu.build)"
	@echo "or: $(RUN) -m tests.simgpu.run train.py (tests/simgpu/README.md)"

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(READY)
	$(RUN) -m pip install --quiet --editable ".[docs]"
	$(RUN) -m mkdocs build

dist: $(READY)
	$(RUN) -m build --outdir dist

$(READY): pyproject.toml tfmem/simulation/best_fit.c
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --editable ".[dev]"
	touch $(READY)

$(WILD_READY): $(WILD_NEEDS) $(WILD_NEEDS_ALONE)
	$(PYTHON) -m venv $(WILD)
	$(WILD)/bin/python -m pip install --quiet --requirement $(WILD_NEEDS)
	$(WILD)/bin/python -m pip install --quiet --no-deps --requirement $(WILD_NEEDS_ALONE)
	touch $(WILD_READY)

clean:
	rm -rf $(VENV) $(WILD) out
