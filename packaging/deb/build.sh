#!/usr/bin/env bash
# build.sh [CHECKOUT]: packs what packaging/tree.sh describes into postgresql-$PG-idgen_VERSION-1_ARCH.deb.
set -euo pipefail
cd "$(dirname "$0")/../.."
. packaging/tree.sh

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
packaging/documents.sh "$checkout" "$source/documents"
rm "$source/documents/LICENSE" # debian/links: a link to debian/copyright
cp -R packaging/deb/debian "$source"
sed -i -e "s/@PG@/$PG/g" -e "s/@MAINTAINER@/$maintainer/" -e "s,@HOMEPAGE@,$homepage," -e '/^Homepage: $/d' \
  "$source"/debian/{control,install,links}
packaging/copyright "$checkout" "pg$PG" >"$source/debian/copyright"

cat >"$source/debian/changelog" <<END
idgen ($version-1) unstable; urgency=medium

  * Version $version: see changelog.gz.

 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
END
(cd "$source" && quietly dpkg-buildpackage --build=binary --no-sign)
mv "$work"/*.deb "$output"
rm -rf "$work"
say "$(stat -c '%n, %s bytes' "$output/postgresql-$PG-idgen_$version-1_"*.deb)"
