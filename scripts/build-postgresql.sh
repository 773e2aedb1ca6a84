#!/usr/bin/env bash
# build-postgresql.sh DIRECTORY [OPTION...]: builds PostgreSQL $PG for tests in DIRECTORY, unless it exists, with OPTIONs of
# its configure. The source package is from a newer suite of Debian, on this system's mirror. The system's apt
# configuration and lists do not change.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
. "$scripts/make-once.sh"

PG=${PG:?}
prefix=$1
shift
options=(--prefix="$prefix" --with-icu --with-openssl "$@") # that the tests need
suites=(stable testing unstable experimental)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
unset MAKELEVEL MAKEFLAGS MFLAGS # PostgreSQL's makefiles take them for those of a parent makefile of their own

say() { echo "==> $*"; }
die() { echo "build-postgresql: $*" >&2; exit 1; }

# Shows the output only if the command fails.
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 50 "$work/log" >&2; die "failed: $*"; }; }

private_apt() {
  local command=$1
  shift
  "$command" -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}

# apt verifies the signature of the suite, and the tarball by the suite's checksums.
download() {
  local mirror suite
  mirror=$("$scripts/debian-mirror.sh")
  for suite in "${suites[@]}"; do
    echo "deb-src [signed-by=$keys] $mirror $suite main"
  done >"$work/sources.list"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  quietly private_apt apt-get update
  private_apt apt-cache showsrc "postgresql-$PG" 2>/dev/null | grep -q . ||
    die "no source package of PostgreSQL $PG in ${suites[*]} of $mirror: add the PostgreSQL project's apt repository" \
      "to this system, or set PG_CONFIG to the pg_config of your own build"
  (cd "$work" && quietly private_apt apt-get source --tar-only "postgresql-$PG")
}

# Debian's patches change paths, so this builds the release itself.
build() (
  say "build PostgreSQL $PG from its source package (takes minutes, once)"
  download
  mkdir "$work/source"
  tar -xf "$work"/postgresql-"$PG"_*.orig.tar.* -C "$work/source" --strip-components=1
  cd "$work/source"
  quietly ./configure --quiet "${options[@]}"
  quietly make -s -j "$(nproc)" world-bin
  quietly make -s -j "$(nproc)" install-world-bin DESTDIR="$work/root"
  mv "$work/root$prefix" "$work/result"
)

make_once "$prefix" build
