#!/usr/bin/env bash
# build.sh [CHECKOUT]: packs what packaging/tree.sh describes into idgen_$PG-VERSION-1.ARCH.rpm, with the paths of the
# PostgreSQL project's RPMs.
set -euo pipefail
cd "$(dirname "$0")/../.."
. packaging/tree.sh

tree=$output/rpm-$PG
rpm=$output/idgen_$PG-$version-1.$(uname -m).rpm

rm -rf "$tree"
mkdir -p "$tree"/{lib,extension}
find "$stage" -name idgen.so -exec cp {} "$tree/lib" \;
find "$stage" -path '*/extension/*' -type f -exec cp {} "$tree/extension" \;
packaging/documents.sh "$checkout" "$tree/documents"
chmod -R a-x,a+X "$tree/documents" # the package would require the shells of executable scripts
packaging/copyright "$checkout" "pg$PG" >"$tree/copyright"
strip --strip-unneeded "$tree/lib/idgen.so"
# The server must load the same libpq. The build has the run path of the server that it was built for.
patchelf --set-rpath "/usr/pgsql-$PG/lib" "$tree/lib/idgen.so"
licenses=$(sed -n 's/^License: //p' "$tree/copyright" | sed 's/ and /\n/g' | sort -u | paste -sd , | sed 's/,/ AND /g')
sed -e "s/@PG@/$PG/g" -e "s/@VERSION@/$version/g" -e "s/@LICENSES@/$licenses/" -e "s/@MAINTAINER@/$maintainer/" \
  -e "s,@HOMEPAGE@,$homepage," -e '/^homepage = ""$/d' packaging/rpm/Cargo.toml.in >"$tree/Cargo.toml"
# Without the time, rpm's tools take the file's.
find "$tree" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
(cd "$tree" && cargo generate-rpm --output "$rpm")
rm -rf "$tree"
echo "==> $(stat -c '%n, %s bytes' "$rpm")"
