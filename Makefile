# `make` lists the targets. Each target installs the packages that it needs and skips those that are installed.

# The major version of PostgreSQL: by default that of PG_CONFIG, which pgxn sets, or 15.
ifndef PG
PG := $(if $(PG_CONFIG),$(shell "$(PG_CONFIG)" --version | sed -n 's/^PostgreSQL \([0-9]*\).*/\1/p'),15)
endif
PG_CONFIG ?= $(shell PG='$(PG)' IDGEN_CACHE='$(IDGEN_CACHE)' scripts/default-pg-config.sh)
# The root of a staged installation, as in PGXS.
DESTDIR ?=
# The length of the storms of `make soak`: 1 takes minutes, 100 takes a night. The mutants take two hours in any case.
ROUNDS ?= 1
# The mutants that `make soak` samples, and the first seed of `make simulate`; 0 for one from the clock.
SEED ?= 0
# How long `make fuzz` runs each fuzz target, and `make simulate` and `make simulate-holes` search.
SECONDS ?= 60
# The targets of the cluster tests that `make test-assertions` runs, by default all.
TESTS ?=
# The releases of Debian of `make test-packages`, by default all.
SUITES ?=
# The subjects of `make bench`, by default all of them. --quick only checks that the bench works.
BENCH ?=

# pgrx compiles against PGRX_PG_CONFIG_PATH and then needs no `cargo pgrx init`.
export PG PG_CONFIG
export PGRX_PG_CONFIG_PATH = $(PG_CONFIG)
# pgrx declares a newer Rust than rust-toolchain.toml names, and compiles with this one. `cargo pgrx` passes the flag on.
export PGRX_BUILD_FLAGS = --ignore-rust-version
# The calling shell may be older than the installation of Rust.
export PATH := $(PATH):$(HOME)/.cargo/bin

CARGO ?= cargo
VERSION = $(shell scripts/version.sh)
FEATURES = --no-default-features --features pg$(PG)
STAGE = target/package/pg$(PG)
# The files of the container images.
IMAGE = target/image/pg$(PG)
# The no-op extension of the bench. It is built like idgen and never installed.
NOOP = target/package/noop-pg$(PG)
# Neither the library nor its C code names this directory, so builds of one commit in two directories are equal.
PGRX_PACKAGE = RUSTC_WRAPPER="$(CURDIR)/scripts/rustc-remap.sh" \
  CFLAGS="$(CFLAGS) -ffile-prefix-map=$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)=/idgen/target" $(CARGO) pgrx package
# loom replaces the atomics of every crate, so it needs a target directory of its own.
LOOM = RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom $(CARGO)
# `sudo make install`, as pgxn runs it, in a tree of the calling user: that user builds, because root may have no Rust.
# Root only installs.
BUILDER := $(and $(SUDO_USER),$(filter $(SUDO_USER),$(shell stat -c %U .)))

.DEFAULT_GOAL := help
.NOTPARALLEL:
# No target is a file.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' Makefile)

help: ## list the targets
	@echo "idgen for PostgreSQL $(PG) (PG=18 selects another version)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' Makefile

# Each target installs the group of dependencies that has its name.
DEPS = rust deps dev-deps assertions-deps guide-deps bench-deps soak-deps dist-deps docs-deps lint-deps sbom-deps \
  image-deps deb-deps rpm-deps packaging-deps
.PHONY: $(DEPS)
$(DEPS):
	@scripts/setup.sh $@

deps: ## install the build dependencies: compiler, PostgreSQL with its headers, cargo-pgrx
dev-deps: deps ## install the test dependencies too: PgBouncer, Python and Java clients
assertions-deps: dev-deps ## install what builds PostgreSQL too
guide-deps: deps ## install the tools of the guides too: exporters, frameworks, Patroni
bench-deps: deps ## install the peers of the bench too: Redis, etcd
soak-deps: rust ## install cargo-mutants, which changes the core in many places
dist-deps: rust ## install pgxn and pgxn_meta, which install and check the PGXN archive
docs-deps: ## install mdbook, which builds the book of docs/
lint-deps: ## install cargo-deny, which checks the dependencies
sbom-deps: ## install cargo-cyclonedx, which lists the dependencies
packaging-deps: deps ## install the tools that build and test packages
deb-deps rpm-deps: deps

all: build ## the name of `make build` in PGXS, which pgxn uses

# Cargo compiles changed sources only. The stage takes half a second, so each build makes a new one: it is never stale.
# cargo-pgrx copies the upgrade scripts, but not the SQL of the release where they start.
build: deps ## build in release mode, into target/package
	@echo "==> build for PostgreSQL $(PG), release"
	@rm -rf $(STAGE)
	@$(PGRX_PACKAGE) $(FEATURES) --pg-config $(PG_CONFIG) --out-dir $(STAGE) >/dev/null
	@cp sql/idgen--*.sql "$(STAGE)$$($(PG_CONFIG) --sharedir)/extension/"

# `install` replaces a file: `cp` would write into a library that a running server has loaded, and crash that server.
# It also sets the mode under any umask. SQL of other versions goes, as with a package. sudo runs only to copy into a
# directory that the user may not write to.
install: $(if $(BUILDER),,build) ## build and install into PostgreSQL, or below DESTDIR
	@$(if $(BUILDER),sudo -H -u $(BUILDER) $(MAKE) build PG=$(PG) PG_CONFIG=$(PG_CONFIG))
	@echo "==> install into $(or $(DESTDIR),PostgreSQL $(PG))"
	@sudo=; [ -n "$(DESTDIR)" ] || [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || sudo=sudo; \
	find $(STAGE) -type f -printf '/%P\n' | while read -r file; do \
	  cmp -s "$(STAGE)$$file" "$(DESTDIR)$$file" && continue; \
	  echo "$(DESTDIR)$$file"; \
	  $$sudo install -m 0644 -D "$(STAGE)$$file" "$(DESTDIR)$$file" </dev/null || exit 1; \
	done || exit 1; \
	for old in "$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension"/idgen--*.sql; do \
	  [ -e "$(STAGE)$${old#"$(DESTDIR)"}" ] || $$sudo rm -fv "$$old"; \
	done

uninstall: ## remove the files that `make install` has installed
	@sudo=; [ -n "$(DESTDIR)" ] || [ -w "$$($(PG_CONFIG) --pkglibdir)" ] || sudo=sudo; \
	$$sudo rm -fv "$(DESTDIR)$$($(PG_CONFIG) --pkglibdir)/idgen.so" \
	  "$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension/idgen.control" \
	  "$(DESTDIR)$$($(PG_CONFIG) --sharedir)/extension"/idgen--*.sql

deb: deb-deps build ## build a Debian package for Debian's PostgreSQL, into target/packages
	@packaging/deb/build.sh

rpm: rpm-deps build ## build an RPM with the paths of the PostgreSQL project's, into target/packages
	@packaging/rpm/build.sh

test-packages: packaging-deps ## build the packages and test them on clean roots (as root); SUITES=bookworm, trixie or both
	@packaging/test.sh $(SUITES)

installcheck: install ## SQL tests (pg_regress, isolation) on a private server
	@scripts/installcheck.sh

test-core: rust ## tests of the core and the models, without PostgreSQL
	@echo "==> core: unit and property tests, and the models"
	@$(CARGO) test -p idgen-core -p idgen-sim
	@echo "==> core: every interleaving (loom)"
	@$(LOOM) test -p idgen-core --test loom --release
	@echo "==> core: a minute of the simulator, with the same seeds each time"
	@$(CARGO) run -q --release -p idgen-sim --bin simulate 60 1 30000

test smoke crash-points: export TMPDIR := $(shell scripts/test-dir.sh)

test: dev-deps test-core installcheck ## all tests: core, loom models, SQL, real clusters
	@echo "==> real clusters: crashes, clocks, promotion"
	@$(CARGO) test -p idgen-testkit -p idgen-cluster-tests -p idgen-bench
	@echo "==> real clusters: a crash at each step"
	@scripts/crash-points.sh
	@echo "==> all tests passed"

test-guides: dev-deps guide-deps install ## the guides, each with the real tool
	@IDGEN_GUIDES="$$(scripts/cache-dir.sh)/guides" $(CARGO) test -p idgen-guide-tests

crash-points: dev-deps install ## crash servers at each step between two effects, in one way each; `make soak` in all
	@scripts/crash-points.sh

smoke: dev-deps install ## the cluster tests that depend on the version of PostgreSQL
	@echo "==> real clusters of PostgreSQL $(PG): tests that depend on its version"
	@scripts/smoke.sh

# Not the server of the other targets, because this one is slow.
ASSERTIONS = $(shell scripts/cache-dir.sh)/postgresql-$(PG)-assertions

test-assertions: assertions-deps ## SQL and cluster tests on a PostgreSQL that checks its own assertions; TESTS="lease lock" for fewer
	@scripts/build-postgresql.sh "$(ASSERTIONS)" --enable-cassert --enable-injection-points
	@$(MAKE) installcheck PG_CONFIG="$(ASSERTIONS)/bin/pg_config"
	@PG_CONFIG="$(ASSERTIONS)/bin/pg_config" scripts/crash-points.sh
	@PG_CONFIG="$(ASSERTIONS)/bin/pg_config" $(CARGO) test -p idgen-cluster-tests $(addprefix --test=,$(TESTS))

test-upgrade: dev-deps install ## tests of pg_upgrade from PostgreSQL 15; PG=18 selects the version to upgrade to
	@scripts/pg-upgrade.sh

demo: install ## run the demo: ids under pgbench load, verified by queries
	@scripts/demo.sh

demo-stop: ## stop and remove the demo server
	@scripts/demo.sh stop

# Other load on the machine distorts the absolute figures, and the ratios less.
bench: bench-deps install ## measure the speed; BENCH=ids, segments, locks, leases, workers or growth; BENCH=--quick
	@echo "==> benchmarks of the core"
	@$(CARGO) bench -p idgen-core -- $(filter --quick,$(BENCH))
	@echo "==> benchmarks on a server"
	@rm -rf $(NOOP)
	@$(PGRX_PACKAGE) --package idgen-bench-noop $(FEATURES) --pg-config $(PG_CONFIG) --out-dir $(NOOP) >/dev/null
	@$(CARGO) run --release -p idgen-bench -- $(BENCH) --out target/bench \
	  --noop "$(NOOP)$$($(PG_CONFIG) --pkglibdir)/idgen_bench_noop.so" --pgedge "$$(scripts/pgedge-snowflake.sh)"

chart: rust ## draw the charts and write the tables of docs/performance.md from the report of `make bench`
	@$(CARGO) run -q -p idgen-bench --bin chart -- target/bench/report.json docs

soak: test-guides soak-deps ## the guides, and long runs of the core and cluster tests; ROUNDS=n for longer ones, SEED=n for other mutants
	@echo "==> soak, $(ROUNDS) round(s): core"
	@PROPTEST_CASES=$$(($(ROUNDS) * 100000)) $(CARGO) test -p idgen-core --release
	@IDGEN_SOAK_ROUNDS=$(ROUNDS) $(CARGO) test -p idgen-sim --release
	@$(LOOM) test -p idgen-core --test loom --release
	@echo "==> soak: breaks of the core, each of which its tests must notice"
	@scripts/breaks.sh
	@echo "==> soak: the simulator, and known holes that it must find"
	@$(CARGO) run -q --release -p idgen-sim --bin simulate $$(($(ROUNDS) * 300))
	@scripts/simulate-holes.sh 60
	@echo "==> soak: a sample of mutants of the core, of which its tests must notice nine of ten"
	@scripts/mutants.sh $(SEED)
	@echo "==> soak, $(ROUNDS) round(s): real clusters"
	@IDGEN_SOAK_ROUNDS=$(ROUNDS) $(CARGO) test -p idgen-testkit -p idgen-cluster-tests --release
	@echo "==> soak: real clusters, a crash at each step in each way"
	@IDGEN_SOAK_ROUNDS=$(ROUNDS) scripts/crash-points.sh

simulate: rust ## search for histories that break a promise; SECONDS=n, SEED=n to begin with
	@$(CARGO) run -q --release -p idgen-sim --bin simulate $(SECONDS) $(filter-out 0,$(SEED))

simulate-holes: rust ## take the fixes of known holes out, which the simulator must find; SECONDS=n for each
	@scripts/simulate-holes.sh $(SECONDS)

fuzz: rust ## fuzz the parsers (needs nightly Rust); SECONDS=n for each
	@scripts/fuzz.sh $(SECONDS)

# Only the extension and the no-op need a version of PostgreSQL, so clippy checks them separately.
lint: deps lint-deps ## check the format, clippy, the scripts, and the licences and sources of the crates
	@echo "==> format"
	@$(CARGO) fmt --all --check
	@$(CARGO) fmt --manifest-path crates/idgen-core/fuzz/Cargo.toml --check
	@$(CARGO) fmt --manifest-path examples/sqlx/Cargo.toml --check
	@echo "==> clippy"
	@$(CARGO) clippy --workspace --exclude idgen --exclude idgen-bench-noop --all-targets -- -D warnings
	@$(CARGO) clippy -p idgen -p idgen-bench-noop $(FEATURES) $(PGRX_BUILD_FLAGS) --all-targets -- -D warnings
	@$(LOOM) clippy -p idgen-core --test loom -- -D warnings
	@echo "==> scripts"
	@for script in scripts/*.sh packaging/*.sh packaging/*/*.sh .ci/run; do bash -n "$$script" || exit 1; done
	@echo "==> dependencies: licences, bans, sources ('make advisories' looks for vulnerabilities)"
	@scripts/deny.sh licenses bans sources

# Not in lint, which needs nothing but the crates: the database is a repository on GitHub.
advisories: lint-deps ## compare the crates with the RustSec advisory database, and fail if it cannot be fetched
	@echo "==> dependencies: advisories"
	@scripts/deny.sh advisories

sbom: sbom-deps ## write the list of the crates in idgen.so (CycloneDX) into target/packages
	@echo "==> the software bill of materials"
	@scripts/sbom.sh

reproducible: deps ## build the last commit twice, in two directories, and compare the results
	@scripts/reproducible.sh

reference: install ## write what the catalog and the models say into docs
	@IDGEN_WRITE_REFERENCE=1 $(CARGO) test -q -p idgen-cluster-tests --test docs -- reference_is
	@IDGEN_WRITE_REFERENCE=1 $(CARGO) test -q -p idgen-sim --test page

picture: dev-deps guide-deps install ## draw the dashboard of docs/monitoring.md from a server under load
	@IDGEN_WRITE_PICTURE=1 IDGEN_GUIDES="$$(scripts/cache-dir.sh)/guides" \
	  $(CARGO) test -q -p idgen-guide-tests -- picture_of

docs: docs-deps ## build the book of docs/ into target/docs, and check its links
	@echo "==> the book"
	@scripts/book.sh

dist: ## pack the last commit for PGXN, into target/packages
	@scripts/dist.sh

test-dist: dist-deps deps dist ## install and check the PGXN archive by pgxn, on a private copy of PostgreSQL
	@scripts/test-dist.sh

image-files: image-deps build ## lay out the files of the container images, in target/image
	@echo "==> files of the images for PostgreSQL $(PG)"
	@scripts/image-files.sh "$(STAGE)" "$(IMAGE)"

test-image: image-files ## SQL tests with the files where the images have them
	@scripts/test-image.sh

test-dockerfile: rust ## build the images from the Dockerfile by buildah, without a registry, and test them (as root)
	@packaging/docker/test.sh

clean: demo-stop ## remove the build and the demo server
	@echo "==> clean"
	@$(CARGO) clean
