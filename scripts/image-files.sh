#!/usr/bin/env bash
# image-files.sh STAGE DIRECTORY: lays out what `make build` has put into STAGE as the container images hold it: lib,
# share/extension and licenses.
set -euo pipefail
cd "$(dirname "$0")/.."

stage=$1
to=$2
umask 022 # the server's user reads the files

rm -rf "$to"
install -D -m 0644 -t "$to/lib" "$stage$("$PG_CONFIG" --pkglibdir)/idgen.so"
strip --strip-unneeded "$to/lib/idgen.so" # four fifths of it are for debuggers
install -D -m 0644 -t "$to/share/extension" "$stage$("$PG_CONFIG" --sharedir)"/extension/idgen*
mkdir "$to/licenses"
packaging/copyright . "pg$PG" >"$to/licenses/copyright"
echo "==> $to: $(du -sk "$to" | cut -f 1) kB"
