#!/usr/bin/env bash
# copy-server.sh DIRECTORY: copies the PostgreSQL of PG_CONFIG, without idgen, below DIRECTORY, and prints the pg_config
# of the copy. PostgreSQL's programs find their files relative to their own place.
set -euo pipefail
cd "$(dirname "$0")/.."

to=$1
pg_config=${PG_CONFIG:-$(scripts/default-pg-config.sh)}
umask 022 # the server's user reads the copy

for option in bindir pkglibdir sharedir includedir; do
  path=$("$pg_config" "--$option")
  mkdir -p "$to${path%/*}"
  cp -a "$path" "$to$path"
done
# The linker looks for libpq here. Debian's directory is that of the whole system.
libdir=$("$pg_config" --libdir)
[ -e "$to$libdir" ] || { mkdir -p "$to${libdir%/*}" && ln -s "$libdir" "$to$libdir"; }
rm -f "$to$("$pg_config" --pkglibdir)/idgen.so" "$to$("$pg_config" --sharedir)"/extension/idgen{.control,--*.sql}
echo "$to$("$pg_config" --bindir)/pg_config"
