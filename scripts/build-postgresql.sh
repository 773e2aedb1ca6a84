#!/usr/bin/env bash
# build-postgresql.sh DIRECTORY: builds PostgreSQL $PG there, for tests, unless it is there. From Debian's source package
# of a newer suite than this system's; the mirror is the one this system uses, whose own configuration and lists stay as
# they are.
set -euo pipefail

PG=${PG:?}
prefix=$1
suites=(stable testing unstable)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
work=$prefix.building
unset MAKELEVEL MAKEFLAGS MFLAGS # PostgreSQL's makefiles think they are called by one another

say() { echo "==> $*"; }
die() { echo "build-postgresql: $*" >&2; exit 1; }

# Silent, unless it fails.
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 50 "$work/log" >&2; die "failed: $*"; }; }

private_apt() {
  local command=$1
  shift
  "$command" -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" "$@"
}

# apt checks the signature of the suite, and the tarball against it.
download() {
  local mirror suite
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
  [ -n "$mirror" ] || die "apt has no lists of a Debian mirror: run apt-get update, or choose a server by PG_CONFIG"
  for suite in "${suites[@]}"; do
    echo "deb-src [signed-by=$keys] $mirror $suite main"
  done >"$work/sources.list"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  quietly private_apt apt-get update
  private_apt apt-cache showsrc "postgresql-$PG" 2>/dev/null | grep -q . ||
    die "no source package of PostgreSQL $PG in ${suites[*]} of $mirror: add the PostgreSQL project's own package" \
      "source to this system, or build it yourself and name its pg_config: PG_CONFIG=... PG=$PG"
  (cd "$work" && quietly private_apt apt-get source --tar-only "postgresql-$PG")
}

# What upstream released, without Debian's changes of paths. Only what initdb, the tests and pgrx need.
build() {
  local source=$work/source
  mkdir "$source"
  tar -xf "$work"/postgresql-"$PG"_*.orig.tar.* -C "$source" --strip-components=1
  cd "$source"
  quietly ./configure --quiet --prefix="$prefix" --with-icu --with-openssl
  quietly make -s -j "$(nproc)" all
  quietly make -s -j "$(nproc)" install DESTDIR="$work/root"
}

mkdir -p "${prefix%/*}"
exec 9>"$prefix.lock"
flock 9 # another checkout may be building the same
[ ! -x "$prefix/bin/pg_config" ] || exit 0
rm -rf "$work" # of a build that was killed
trap 'rm -rf "$work"' EXIT
mkdir "$work"
say "build PostgreSQL $PG from its source package (takes minutes, once)"
download
(build)
mv "$work/root$prefix" "$prefix" # at once: what is there is whole
