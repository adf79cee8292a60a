# Everything a user or a developer types. `make help` lists it. The work is done by tools/ and by the CMake presets, so that
# each step can also be run by hand.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

VENV := .venv

.PHONY: help setup build demo test check format lint gpu-check wheel install bench clean

help:  ## list what can be made
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name words; do \
	  printf '  make %-12s %s\n' "$$name" "$$words"; done

setup:  ## install what building needs: system packages, .venv, the demo's histories
	@tools/setup build data

build:  ## the library and the command (.venv/bin/warploom), the Python package importable in .venv
	@tools/setup build
	@tools/build release

demo: build  ## the main job: fused attention over real user histories, on this machine's best device
	@tools/setup data
	@$(VENV)/bin/warploom demo $(DEMO)

test:  ## every test and check of the project (up to half an hour)
	@tools/setup build test lint
	@tools/test all

check:  ## the developer's loop: format, lint, warnings as errors, unit tests, Python tests (a few minutes)
	@tools/setup build test lint
	@tools/test quick

format:  ## rewrite C++ and Python in the project's style
	@tools/setup lint
	@tools/style format

lint:  ## formatter, linters and types, without building
	@tools/setup lint
	@tools/style check

gpu-check:  ## on a machine with a GPU: correctness, sanitizers, benchmarks into reports/gpu.json
	@tools/setup build test
	@tools/build release
	@tools/gpu_check $(GPU_CHECK)

bench: build  ## tables of time and rate on this machine
	@$(VENV)/bin/warploom bench attention $(BENCH)

wheel: build  ## a wheel in dist/ that serves every Python 3 version
	@$(VENV)/bin/pip wheel --no-deps --wheel-dir dist .

PREFIX ?= /usr/local
install: build  ## the C and C++ library under PREFIX (default /usr/local), for find_package(warploom)
	@cmake --install build/release --prefix $(PREFIX)

clean:  ## remove build/ and dist/ (.venv and .data stay)
	@rm -rf build dist
