# Everything a developer of idgen does, one target each. `make` alone lists them.
# Every target does its own set-up first and skips quickly what is already there.

# The major version of PostgreSQL to build for and test with. PG_CONFIG names a server that is there already.
PG ?= 15
PG_CONFIG ?= $(shell PG='$(PG)' IDGEN_CACHE='$(IDGEN_CACHE)' scripts/default-pg-config.sh)
# How much of `make soak`: 1 takes minutes, 100 takes a night.
ROUNDS ?= 1
# How long each target of `make fuzz` runs.
SECONDS ?= 60
# What `make bench` measures: subjects, and --quick to see only that it works. Nothing is everything.
BENCH ?=

# PGRX_PG_CONFIG_PATH tells pgrx which PostgreSQL to compile against; it makes `cargo pgrx init`, and its files in
# the home directory, unnecessary.
export PG PG_CONFIG
export PGRX_PG_CONFIG_PATH = $(PG_CONFIG)
# Rust may have been installed after this shell was started.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
FEATURES = --no-default-features --features pg$(PG)
STAGE = target/package/pg$(PG)
# Built as the extension is, and installed nowhere.
NOOP = target/package/noop-pg$(PG)
# Model checking replaces the atomics in every crate, so it keeps its own target directory.
LOOM = RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build install installcheck test-core test smoke demo demo-stop bench soak fuzz lint clean

help: ## list the targets
	@echo "idgen, for PostgreSQL $(PG) (choose another with PG=...)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' Makefile

setup: ## install what building and testing need (Debian packages, cargo-pgrx; builds PostgreSQL if there is no package)
	@scripts/setup.sh

# Old releases' SQL goes along: it is where every upgrade begins, and its test.
build: setup ## build in release, into target/package
	@echo "==> build for PostgreSQL $(PG), release"
	@rm -rf $(STAGE)
	@$(CARGO) pgrx package $(FEATURES) --pg-config $(PG_CONFIG) --out-dir $(STAGE)
	@cp sql/idgen--*.sql "$(STAGE)$$($(PG_CONFIG) --sharedir)/extension/"

# `install` and not `cp`: it replaces the library instead of writing into it, which would crash a server that has it
# loaded, and it sets the mode whatever the umask. An unchanged file is left alone. Who may not write into PostgreSQL's
# directories asks sudo, for that copy only.
install: build ## build and install into PostgreSQL
	@echo "==> install into PostgreSQL $(PG)"
	@sudo=; [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || sudo=sudo; \
	cd $(STAGE) && find . -type f | while read -r file; do \
	  cmp -s "$$file" "/$$file" || { echo "$${file#.}"; $$sudo install -m 0644 -D "$$file" "/$$file" </dev/null || exit 1; }; \
	done

installcheck: install ## SQL tests (pg_regress, isolation) on a private server
	@scripts/installcheck.sh

test-core: setup ## the tests that need no PostgreSQL
	@echo "==> core: unit and property tests"
	@$(CARGO) test -p idgen-core
	@echo "==> core: every interleaving (loom)"
	@$(LOOM) test -p idgen-core --test loom --release

test: test-core installcheck ## all tests: core, loom models, SQL, real clusters
	@echo "==> real clusters: crashes, clocks, promotion"
	@$(CARGO) test -p idgen-testkit -p idgen-cluster-tests -p idgen-bench
	@echo "==> all tests passed"

smoke: install ## the quickest of the cluster tests that say whether a PostgreSQL will do
	@echo "==> real servers of PostgreSQL $(PG): the tests that depend on its version"
	@scripts/smoke.sh

demo: install ## see it work: ids under pgbench load, checked by query
	@scripts/demo.sh

demo-stop: ## stop and remove the demo's server
	@scripts/demo.sh stop

# Ratios bear a machine that does other work meanwhile, up to a point; nothing else does.
bench: install ## measure the speed against other generators; BENCH=ids, segments, locks, leases or workers, BENCH=--quick
	@echo "==> benchmarks of the core"
	@$(CARGO) bench -p idgen-core -- $(filter --quick,$(BENCH))
	@echo "==> benchmarks on a server"
	@rm -rf $(NOOP)
	@$(CARGO) pgrx package --package idgen-bench-noop $(FEATURES) --pg-config $(PG_CONFIG) --out-dir $(NOOP)
	@$(CARGO) run --release -p idgen-bench -- $(BENCH) --out target/bench \
	  --noop "$(NOOP)$$($(PG_CONFIG) --pkglibdir)/idgen_bench_noop.so"

soak: install ## the same tests in big figures; ROUNDS=n for more
	@echo "==> soak, $(ROUNDS) round(s): core"
	@PROPTEST_CASES=$$(($(ROUNDS) * 100000)) $(CARGO) test -p idgen-core --release
	@$(LOOM) test -p idgen-core --test loom --release
	@echo "==> soak, $(ROUNDS) round(s): real clusters"
	@IDGEN_SOAK_ROUNDS=$(ROUNDS) $(CARGO) test -p idgen-testkit -p idgen-cluster-tests --release

fuzz: setup ## made-up texts for the parsers (needs nightly Rust); SECONDS=n for more
	@scripts/fuzz.sh $(SECONDS)

# The extension apart from the rest: only it needs PostgreSQL's headers and the choice of a version.
lint: setup ## formatting, clippy, and the syntax of the scripts
	@echo "==> format"
	@$(CARGO) fmt --all --check
	@$(CARGO) fmt --manifest-path crates/idgen-core/fuzz/Cargo.toml --check
	@echo "==> clippy"
	@$(CARGO) clippy --workspace --exclude idgen --exclude idgen-bench-noop --all-targets -- -D warnings
	@$(CARGO) clippy -p idgen -p idgen-bench-noop $(FEATURES) --all-targets -- -D warnings
	@$(LOOM) clippy -p idgen-core --test loom -- -D warnings
	@echo "==> scripts"
	@for script in scripts/*.sh .ci/run; do bash -n "$$script" || exit 1; done

clean: demo-stop ## remove everything that was built, and the demo's server
	@echo "==> clean"
	@$(CARGO) clean
