# `make demo`, `make test` and `make check` set up .venv by themselves and use it again.
PYTHON ?= python3
BIN := .venv/bin
ENGINE := $(wildcard engine/src/* engine/include/* engine/python/*/*.py*) \
	$(wildcard engine/cmake/* engine/js/* engine/python/burn_engine/pretrained/*) \
	engine/CMakeLists.txt engine/pyproject.toml

# Images of containers often forbid bytecode, and nothing below compiles the packages beforehand:
# then every process would compile all of torch again, which doubles its start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-avx2 test-bfloat16 test-long check docs reproduce site wheels models gpu-check large clean

demo: .venv/ready
	$(BIN)/burn demo

# Four processes for two cores, since tests of signals, of lost nodes and of pages wait.
SIDE_BY_SIDE := -n 4 --dist loadfile --no-loadscope-reorder
test: .venv/ready
	$(BIN)/pytest $(SIDE_BY_SIDE)

# The same on kernels that round otherwise: as on an x86 processor without AVX-512, whichever this
# is. Of libraries that choose kernels by the processor only NumPy and ONNX Runtime stay as they are.
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	BURN_ENGINE_ISA=avx2 OPENBLAS_CORETYPE=Haswell OPENCV_CPU_DISABLE=AVX512-SKX \
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/build/inductor-avx2  # whose keys do not tell the processor
test-avx2: .venv/ready
	$(AVX2) $(BIN)/pytest $(SIDE_BY_SIDE)

# The same with `--compute auto` as bfloat16, which it is on some processors alone.
test-bfloat16: .venv/ready
	BURN_COMPUTE=bfloat16 $(BIN)/pytest $(SIDE_BY_SIDE)

# The tests that take minutes: faults of many processes, and whether every method learns.
test-long: .venv/ready
	$(BIN)/pytest -m long

# Whether burn is correct and how fast it is on this machine's GPU, as gpu-check.json.
gpu-check: .venv/ready
	$(BIN)/python benchmarks/gpu_check.py

# The pages of docs/project/results/, pictures and README's table, from reproduction/results/.
docs: .venv/ready
	$(BIN)/python -m reproduction.documents.generate

# The paper's comparison, ablations and analyses, in runs/reproduction/$(SCALE): small, of built-in
# images, takes an hour of one core at most; full, of CIFAR-10 and photographs, takes days. Resumes.
SCALE ?= small
reproduce: .venv/ready
	PATH="$(CURDIR)/$(BIN):$$PATH" reproduction/reproduce.sh $(SCALE)

# The documentation as pages in build/site, which need no network; tests/test_site.py makes them too.
site: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The pretrained network photos, from clones of the repositories that docs/models/ names:
# make models CLONES="imagenette imagewoof imagenet-sample-images". A later call resumes.
models: .venv/ready
	mkdir -p build
	$(BIN)/python models/data.py photos $(CLONES) --out build/photos.parquet
	$(BIN)/burn pretrain --data build/photos.parquet --teacher lite0 --epochs 27 --resume \
		--out runs/photos
	$(BIN)/python models/keep.py runs/photos photos --commit $$(git rev-parse --short HEAD) \
		--data "18,790 photographs: imagenette, imagewoof and imagenet-sample-images, 192 pixels"

# burn-engine's wheels for Linux on x86-64 and 64-bit ARM, for $(PYTHON); or for several:
# make wheels PYTHONS="python3.11 python3.12"
wheels: build/wheels/ready
	build/wheels/bin/python engine/wheels/build.py --out dist $(PYTHONS:%=--python %)

# The compilers, and NumPy's wheel for the tests, which have no network.
build/wheels/ready: engine/wheels/requirements.txt
	$(PYTHON) -m venv build/wheels
	build/wheels/bin/pip install --quiet --disable-pip-version-check --requirement $<
	build/wheels/bin/pip download --quiet --disable-pip-version-check --only-binary=:all: \
		--dest build/wheels/packages numpy
	touch $@

# Debian's Python for 64-bit ARM, in which a test installs a wheel.
build/aarch64/ready: engine/wheels/aarch64_python.py | .venv/bin/pip
	$(BIN)/python $< build/aarch64
	touch $@

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --style=file:engine/.clang-format --dry-run --Werror \
		$$(git ls-files '*.c' '*.cc' '*.h')
	$(BIN)/pyright
	$(BIN)/lint-imports

# burn-ssl needs the engine, and takes it from here, built from its sources. Python compiles what it
# imports by itself; compiling all packages would take half a minute more.
.venv/ready: pyproject.toml engine/pyproject.toml | large
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev,teacher]'
	touch $@

# What takes longest, beside each other: they install no package in common.
large: .venv/bin/pip
	@$(MAKE) --question .venv/engine .venv/torch || \
		$(MAKE) --no-print-directory --jobs=2 .venv/engine .venv/torch

.venv/engine: $(ENGINE) | .venv/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps ./engine
	touch $@

.venv/torch: | .venv/bin/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile torch torchvision
	touch $@

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "burn needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv

clean:
	rm -rf .venv dist build engine/build .ruff_cache
