#!/usr/bin/env bash
# Installs what building and testing idgen need, and nothing that is already there. Works as root, or as a user who
# may use sudo. It creates and starts no PostgreSQL server.
set -euo pipefail
cd "$(dirname "$0")/.."

export PG=${PG:-15}
packages=(
  build-essential clang libclang-dev                  # pgrx reads the headers through libclang
  pkg-config libssl-dev                               # to compile cargo-pgrx
  libpq-dev                                           # the keeper's connection to its coordinator
  faketime                                            # tests that step the clock
  pgbouncer                                           # tests of locks behind a pooler
  python3-psycopg                                     # tests of the README's clients that make ids, in Python
  default-jdk-headless libpostgresql-jdbc-java        # and in Java
  redis-server etcd-server                            # what the bench compares locks and leases with
)
# The server with its headers, pg_regress and pgbench.
server_packages=("postgresql-$PG" "postgresql-server-dev-$PG")
# What building and running it needs, where the system has no such packages. The last one makes the user postgres.
build_packages=(bison flex libicu-dev libreadline-dev zlib1g-dev postgresql-common)
# cargo-pgrx and the library must be of one version, and Cargo.toml names it.
pgrx=$(sed -n 's/^pgrx = "=\(.*\)"/\1/p' Cargo.toml)
rust=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

say() { echo "==> $*"; }
die() { echo "setup: $*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# Debian's packages make and start a cluster, a pooler, a Redis and an etcd, which nobody asked for here. Two files
# prevent that; they are there only while apt runs, and files that exist are not touched.
no_cluster=/etc/postgresql-common/createcluster.d/idgen-setup.conf
no_start=/usr/sbin/policy-rc.d
prevent_services() {
  made_no_start=
  [ -e "$no_start" ] || made_no_start=yes # before the trap, which removes what was made here
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

# install_missing PACKAGE...
install_missing() {
  local missing=() package
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "install ${missing[*]}"
  update_lists
  prevent_services
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
  allow_services
}

lists_updated=
update_lists() {
  [ -z "$lists_updated" ] || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "needs root or sudo to install packages"
  as_root apt-get update -q || die "apt-get update failed"
  lists_updated=yes
}

# The system's server, and one built from source where it has none. A server that PG_CONFIG names is taken as it is.
provide_server() {
  local default version
  default=$(scripts/default-pg-config.sh)
  if [ "${PG_CONFIG:-$default}" != "$default" ]; then
    version=$("$PG_CONFIG" --version) || die "there is no PostgreSQL with $PG_CONFIG"
    [[ $version =~ ^"PostgreSQL $PG"[^0-9] ]] || die "$PG_CONFIG is of $version: say PG=... as well"
  elif installed "postgresql-$PG"; then
    install_missing "${server_packages[@]}"
  elif [ ! -x "$default" ] && update_lists && apt-cache show "postgresql-$PG" >/dev/null 2>&1; then
    install_missing "${server_packages[@]}"
  else
    install_missing "${build_packages[@]}"
    scripts/build-postgresql.sh "${default%/bin/pg_config}"
  fi
}

check_rust() {
  local version
  version=$(rustc --version 2>/dev/null | cut -d ' ' -f 2) ||
    die "Rust $rust is missing: install rustup, then run: rustup toolchain install $rust"
  [ "$(printf '%s\n' "$rust" "$version" | sort -V | head -n 1)" = "$rust" ] ||
    die "Rust $version is too old, $rust is needed: install rustup, then run: rustup toolchain install $rust"
  { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 ||
    die "rustfmt or clippy is missing: run: rustup component add rustfmt clippy"
}

install_cargo_pgrx() {
  [ "$(cargo pgrx --version 2>/dev/null)" = "cargo-pgrx $pgrx" ] && return
  say "install cargo-pgrx $pgrx (takes minutes, once)"
  # Its own target directory: otherwise it would use, and disturb, that of this project when one is set.
  env -u CARGO_TARGET_DIR cargo install --locked cargo-pgrx --version "$pgrx"
}

command -v apt-get >/dev/null || die "knows Debian and its relatives only; elsewhere install: ${packages[*]} ${server_packages[*]}"
check_rust
install_missing "${packages[@]}"
provide_server
install_cargo_pgrx
say "setup: PostgreSQL $PG, Rust and cargo-pgrx $pgrx are there"
