#!/usr/bin/env bash
# Runs the SQL tests with idgen where the container images have it, on a private copy of PostgreSQL. No container engine
# is needed: this script carries out the COPY instructions of the Dockerfile.
set -euo pipefail
cd "$(dirname "$0")/.."

dockerfile=packaging/docker/Dockerfile
bindir=$("$PG_CONFIG" --bindir)
work=$(mktemp -d /tmp/idgen-image.XXXXXX)
trap 'rm -rf "$work"' EXIT
umask 022
chmod 755 "$work" # the server's user enters it

say() { echo "==> $*"; }
die() { echo "test-image: $*" >&2; exit 1; }

# copy STAGE ROOT: copies to ROOT what this stage of the Dockerfile copies from its stage "build".
copy() {
  local instructions source target
  instructions=$(sed -n "/^FROM .* AS $1\$/,/^FROM /s/^COPY --from=build \/idgen\///p" "$dockerfile")
  [ -n "$instructions" ] || die "$dockerfile has no COPY from its stage build in the stage $1"
  while read -r source target; do
    mkdir -p "$2$target"
    cp -r "$source." "$2$target"
  done <<<"${instructions//'${PG}'/$PG}"
}

# check SERVER [FILE]: runs the SQL tests on the copied server, with the settings of FILE.
check() {
  local server=$1
  shift
  PG_CONFIG=$server$bindir/pg_config scripts/installcheck.sh "$@"
}

tested=
if [ "$PG" -ge 18 ]; then
  say "the image of files: outside of the server's directories"
  scripts/copy-server.sh "$work/server" >/dev/null
  copy files "$work/image"
  cat >"$work/settings" <<END
dynamic_library_path = '\$libdir:$work/image/lib'
extension_control_path = '\$system:$work/image/share'
END
  check "$work/server" "$work/settings"
  tested=yes
fi
if [ "$bindir" = "/usr/lib/postgresql/$PG/bin" ]; then
  say "the image of a server: in Debian's directories"
  scripts/copy-server.sh "$work/debian" >/dev/null
  copy server "$work/debian"
  check "$work/debian"
  tested=yes
fi
[ -n "$tested" ] || die "needs PostgreSQL 18, or PostgreSQL $PG from a Debian package"
