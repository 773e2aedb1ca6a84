#!/usr/bin/env bash
# Writes target/packages/idgen-VERSION.cdx.json: CycloneDX's list of the crates that idgen.so is compiled from, with
# versions, licences and checksums. Two runs over one commit write the same file.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(scripts/version.sh)
sbom=target/packages/idgen-$version.cdx.json
features=(--no-default-features --features "pg${PG:-15}")

die() { echo "sbom: $*" >&2; exit 1; }

# Cargo unites the features that all members and their tests ask for. A copy of the extension alone, without its tests,
# yields the crates of idgen.so. cargo-cyclonedx also writes its files beside each Cargo.toml.
copy=target/sbom
rm -rf "$copy"
mkdir -p "$copy/crates" "${sbom%/*}"
cp -r Cargo.toml Cargo.lock build.rs src "$copy/"
cp -r crates/idgen-core "$copy/crates/"
sed -i 's/^members = .*/members = []/' "$copy/Cargo.toml"
sed -i '/^\[dev-dependencies\]/,/^$/d' "$copy/crates/idgen-core/Cargo.toml"
# With the time of the commit in place of the present one, cargo-cyclonedx leaves out its random serial number.
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
SOURCE_DATE_EPOCH=$epoch cargo cyclonedx --manifest-path "$copy/Cargo.toml" \
  --format json --spec-version 1.5 --no-build-deps "${features[@]}" --target x86_64-unknown-linux-gnu \
  --override-filename idgen.cdx --quiet
sed "s,path+file://$PWD/$copy,path+file:///idgen,g" "$copy/idgen.cdx.json" >"$sbom"

# Cargo itself says what it compiles for each architecture. The proc macros among these run in the compiler.
listed=$(jq -r '.metadata.component, .components[] | .name + " v" + .version' "$sbom" | sort)
for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
  compiled=$(cargo tree --locked -p idgen -e normal "${features[@]}" --target "$target" --prefix none --no-dedupe -f '{p}' |
    cut -d ' ' -f 1,2 | sort -u)
  diff <(echo "$compiled") <(echo "$listed") || die "the crates for $target (<) are not those of the list (>)"
done
! grep -qF "$PWD" "$sbom" || die "$sbom names this directory"
echo "==> $sbom: $(echo "$listed" | wc -l) crates"
