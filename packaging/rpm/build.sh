#!/usr/bin/env bash
# build.sh [CHECKOUT]: packs what `make build` has left in target/package/pg$PG of the checkout, by default of this one,
# into target/packages/idgen_$PG-VERSION-1.ARCH.rpm of the same checkout, with the paths of the PostgreSQL project's
# RPMs. Two runs over one build give the same package.
set -euo pipefail
cd "$(dirname "$0")/../.."

PG=${PG:?}
packaging=$PWD/packaging
checkout=$(realpath "${1:-.}")
stage=$checkout/target/package/pg$PG
output=$checkout/target/packages
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$checkout/Cargo.toml")
tree=$output/rpm-$PG
rpm=$output/idgen_$PG-$version-1.$(uname -m).rpm

rm -rf "$tree"
mkdir -p "$tree"/{lib,extension}
find "$stage" -name idgen.so -exec cp {} "$tree/lib" \;
find "$stage" -path '*/extension/*' -type f -exec cp {} "$tree/extension" \;
cp "$checkout"/{README,CHANGELOG}.md "$tree"
"$packaging/copyright" "$checkout" "pg$PG" >"$tree/copyright"
strip --strip-unneeded "$tree/lib/idgen.so"
# The server must load the same libpq. The build has the run path of the server that it was built for.
patchelf --set-rpath "/usr/pgsql-$PG/lib" "$tree/lib/idgen.so"
sed -e "s/@PG@/$PG/g" -e "s/@VERSION@/$version/g" "$packaging/rpm/Cargo.toml.in" >"$tree/Cargo.toml"

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$checkout" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
# Without the time, rpm's tools take the file's.
find "$tree" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
(cd "$tree" && cargo generate-rpm --output "$rpm")
rm -rf "$tree"
echo "==> $(stat -c '%n, %s bytes' "$rpm")"
