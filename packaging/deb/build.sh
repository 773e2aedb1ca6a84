#!/usr/bin/env bash
# build.sh [CHECKOUT]: packs what `make build` has left in target/package/pg$PG of the checkout, by default of this one,
# into target/packages/postgresql-$PG-idgen_VERSION-1_ARCH.deb of the same checkout. Two runs over one build give the
# same package: its times are those of the commit.
set -euo pipefail
cd "$(dirname "$0")/../.."

PG=${PG:?}
packaging=$PWD/packaging
checkout=$(realpath "${1:-.}")
stage=$checkout/target/package/pg$PG
output=$checkout/target/packages
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$checkout/Cargo.toml")
work=$output/deb-$PG
source=$work/idgen-$version

say() { echo "==> $*"; }
die() { echo "make deb: $*" >&2; exit 1; }

# Shows the output only if the command fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; die "failed: $*"; }; }

# The paths of Debian's server are in the package, so the build must be for that one.
[ -e "$stage/usr/lib/postgresql/$PG/lib/idgen.so" ] ||
  die "$stage is not for Debian's PostgreSQL $PG: build on a release of Debian that has postgresql-$PG"

rm -rf "$work"
mkdir -p "$source"
cp -R "$stage" "$source/stage"
cp "$checkout"/{README,CHANGELOG}.md "$source"
cp -R "$packaging/deb/debian" "$source"
sed -i "s/@PG@/$PG/g" "$source/debian/control"
"$packaging/copyright" "$checkout" "pg$PG" >"$source/debian/copyright"

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$checkout" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
cat >"$source/debian/changelog" <<END
idgen ($version-1) unstable; urgency=medium

  * Version $version: see changelog.gz.

 -- the idgen developers <idgen@packages.invalid>  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
END
(cd "$source" && quietly dpkg-buildpackage --build=binary --no-sign)
mv "$work"/*.deb "$output"
rm -rf "$work"
say "$(stat -c '%n, %s bytes' "$output/postgresql-$PG-idgen_$version-1_"*.deb)"
