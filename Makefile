# Everything a developer does. `make demo` and `make test` also set up what they need.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
BUILD_FLAGS ?=
# ON: warnings are errors (for the wheel: BUILD_FLAGS="-C cmake.define.LUMIGRAD_WERROR=ON").
WERROR ?= OFF
NATIVE_SOURCES := $(shell find kernels/native -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h') CMakeLists.txt $(wildcard cmake/*.cmake)
PROTOS := $(wildcard protos/lumigrad/v1/*.proto)

.PHONY: setup emulation demo test bench lint format sanitize dist clean

setup: $(VENV)/.installed

$(VENV)/.dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=24"
	# Tests are pinned to one torch; bring another by installing it into $(VENV) first.
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet scikit-build-core "nanobind>=2.9,<4" grpcio-tools==1.76.0 "cmake>=3.25,<5" ninja
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE_SOURCES) $(PROTOS)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-build-isolation $(BUILD_FLAGS) -e ".[dev]"
	touch $@

# The CUDA kernels compiled for the host, which the tests run where there is no GPU.
emulation: $(VENV)/.installed
	$(BIN)/cmake -S . -B build/emulation -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DLUMIGRAD_EMULATION=ON -DLUMIGRAD_CUDA=OFF -DLUMIGRAD_WERROR=$(WERROR)
	$(BIN)/cmake --build build/emulation --target emulation
