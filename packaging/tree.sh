# Sourced by the builds of packages, from the root of this checkout, with their arguments: what `make build` has left for
# PostgreSQL $PG in a checkout, by default in this one. Packages go to the same checkout.
PG=${PG:?}
checkout=$(realpath "${1:-.}")
stage=$checkout/target/package/pg$PG
output=$checkout/target/packages
version=$(scripts/version.sh "$checkout")
maintainer=$(scripts/meta.sh maintainer)
homepage=$(scripts/meta.sh homepage)
# Times in the packages are those of the commit, so two runs over one build give the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$checkout" log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
