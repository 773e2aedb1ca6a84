#!/usr/bin/env bash
# image-files.sh STAGE DIRECTORY: lays out what `make build` has put into STAGE as the container images hold it: lib,
# share/extension and licenses.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=$1
to=$2
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
umask 022 # the server's user reads the files

die() { echo "image-files: $*" >&2; exit 1; }

# The crates in the library ask for the texts of their licenses to go with it.
copy_licenses_of_crates() {
  local crates name version license source
  crates=$(cargo tree -p idgen -e normal,no-proc-macro --no-default-features --features "pg$PG" --prefix none \
    --no-dedupe -f '{p} {l}' | grep -v ' (/' | sort -u)
  while read -r name version license; do
    echo "$name $version: $license"
    source=$(find "$registry" -mindepth 2 -maxdepth 2 -path "*/$name-${version#v}" -print -quit)
    [ -n "$source" ] || die "no source of $name $version in $registry"
    find "$source" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) \
      -exec install -D -m 0644 -t "$to/licenses/$name-${version#v}" {} +
  done <<<"$crates" >"$to/licenses/CRATES"
}

rm -rf "$to"
install -D -m 0644 -t "$to/lib" "$stage$("$PG_CONFIG" --pkglibdir)/idgen.so"
strip --strip-unneeded "$to/lib/idgen.so" # four fifths of it are for debuggers
install -D -m 0644 -t "$to/share/extension" "$stage$("$PG_CONFIG" --sharedir)"/extension/idgen*
install -D -m 0644 -t "$to/licenses/idgen" LICENSE
copy_licenses_of_crates
echo "==> $to: $(du -sk "$to" | cut -f 1) kB"
