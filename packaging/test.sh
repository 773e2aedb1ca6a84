#!/usr/bin/env bash
# test.sh [SUITE...]: builds the packages for releases of Debian, by default all of `servers`, and tests each on a clean
# root of that release: its Debian package, and its RPM in the places of the PostgreSQL project. The release of this
# system is built here, and another one in a root of its own. The version before comes from the history of the
# repository.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A servers=([bookworm]=15 [trixie]=17) # the suite's own PostgreSQL
# Another server's, and those of a make that runs this script.
unset PG PG_CONFIG PGRX_PG_CONFIG_PATH MAKELEVEL MAKEFLAGS MFLAGS

say() { echo "==> $*"; }
die() { echo "test-packages: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "a test on a clean root needs chroot: run it as root, or with sudo"
version=$(scripts/version.sh)
# The release is tagged, or it is the commit before the one that began this version.
begun=$(git log -1 --format=%H -G'^version = ' -- Cargo.toml)
released=$(git rev-parse --verify --quiet "$begun^") ||
  die "needs the history of the repository, back to the version before: git fetch --unshallow"

# build_both PG PREVIOUS: what runs in the checkout, here or in a root.
build_both() {
  cat <<END
set -e
export PATH=\$PATH:\$HOME/.cargo/bin
make -s deb rpm PG=$1
[ -n "\$(find $2/target/packages -name '*.deb' 2>/dev/null)" ] || {
  make -s -C $2 build PG=$1
  PG=$1 SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$released") packaging/deb/build.sh $2
}
END
}

# build SUITE PG TARGET: builds both versions below the target directory. A released version does not change, so its
# package stays there.
build() {
  local suite=$1 pg=$2 target=$3 root passed
  local previous=$target/previous/pg$pg-$released
  if [ ! -d "$previous" ]; then
    mkdir -p "$previous"
    git archive "$released" | tar -x -C "$previous"
  fi
  if [ "$suite" = "$(. /etc/os-release && echo "$VERSION_CODENAME")" ]; then
    bash -c "$(build_both "$pg" "$previous")"
  else
    root=$(packaging/clean-root.sh "$suite" "postgresql-$pg")
    if [ ! -d "$root-build" ]; then
      rm -rf --one-file-system "$root-build.making" # a killed run leaves it
      cp -a "$root" "$root-build.making"
      mv "$root-build.making" "$root-build"
    fi
    mapfile -t passed < <(env | grep -E '^(RUSTUP_(TOOLCHAIN|AUTO_INSTALL)|CARGO_PROFILE_.*|SSL_CERT_FILE|https?_proxy)=')
    packaging/enter-root.sh keep "$root-build" "$PWD:/idgen" "$PWD/$target:/idgen/target" \
      "${CARGO_HOME:-$HOME/.cargo}:/root/.cargo" "${RUSTUP_HOME:-$HOME/.rustup}:/root/.rustup" -- \
      env "${passed[@]}" SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" bash -c \
      "command -v make >/dev/null || { apt-get update -q && apt-get install -y -q make; }
       cd /idgen && $(build_both "$pg" "target/${previous#"$target"/}")"
  fi
}

# test_suite SUITE PG: the packages are copied, so that the root sees no other file of the checkout.
test_suite() {
  local suite=$1 pg=$2 target=target root old
  [ "$suite" = "$(. /etc/os-release && echo "$VERSION_CODENAME")" ] || target=target/$suite
  mkdir -p "$target"
  say "$suite, PostgreSQL $pg: build"
  build "$suite" "$pg" "$target"

  old=$(find "$target/previous/pg$pg-$released/target/packages" -name '*.deb')
  rm -rf "$work"/*
  mkdir -p "$work/packages" "$work/blocks"
  cp "$target/packages/postgresql-$pg-idgen_$version-1_"*.deb "$target/packages/idgen_$pg-$version-1."*.rpm "$old" \
    packaging/{test-in-root,quickstart}.sh "$work/packages"
  awk -v to="$work/blocks" -f packaging/blocks.awk docs/quickstart.md

  say "$suite, PostgreSQL $pg: lint"
  # The warning is for packages of Debian's own archive.
  lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
    "$work/packages/postgresql-$pg-idgen_$version-1_"*.deb
  rpmlint --config packaging/rpm/rpmlint.toml "$work/packages/"*.rpm >"$work/rpmlint" || true
  grep -q ' 0 errors, 0 warnings' "$work/rpmlint" || { cat "$work/rpmlint" >&2; die "rpmlint"; }

  say "$suite, PostgreSQL $pg: test"
  dpkg-deb --extract "$work/packages/postgresql-$pg-idgen_$version-1_"*.deb "$work/deb"
  [ "$(dpkg-deb -f "$work/packages/postgresql-$pg-idgen_$version-1_"*.deb Maintainer)" = "$(scripts/meta.sh maintainer)" ] ||
    die "the Debian package has another maintainer than META.json"
  documents "$work/deb/usr/share/doc/postgresql-$pg-idgen"
  install_rpm "$pg"
  documents "$work/rpm/usr/share/doc/idgen_$pg"
  root=$(packaging/clean-root.sh "$suite" "postgresql-$pg")
  packaging/enter-root.sh copy "$root" "$work/packages:/packages" "$work/blocks:/blocks" \
    "$work/rpm/usr/pgsql-$pg:/usr/pgsql-$pg" -- /packages/test-in-root.sh "$pg" "/packages/$(basename "$old")" \
    "/packages/$(basename "$work/packages/postgresql-$pg-idgen_$version-1_"*.deb)"
}

# documents DIRECTORY: a package's documents are those of the repository, and each link leads to one of them.
documents() {
  diff <(git ls-files README.md docs examples contrib | sort) \
    <(cd "$1" && find README.md docs examples contrib -type f | sort) || die "$1 has other files than the repository"
  say "$1: $(packaging/check-links "$1") links lead to its files"
}

# Installs the RPM into an empty root, removes it, and installs it again for the server's test.
install_rpm() {
  local pg=$1 root=$work/rpm package=$work/packages/idgen_$1-$version-1.*.rpm name=idgen_$1
  in_rpm_root() { rpm --force-debian --root "$root" --dbpath /var/lib/rpm "$@"; }
  installed() { (cd "$root" && find usr -type f,l -printf '/%p\n' | sort); }
  mkdir "$root"
  in_rpm_root --install --nodeps $package
  diff <(rpm -qlp $package | sort) <(installed) || die "the RPM installs other files than it lists"
  in_rpm_root --verify --nodeps "$name" || die "the installed files differ from those of the RPM"
  rpm -qp --requires $package | grep -q "^postgresql$pg-server$" || die "the RPM does not require the server"
  ! rpm -qp --requires $package | grep ^/ || die "the RPM requires programs"
  in_rpm_root --erase --nodeps "$name"
  [ -z "$(installed)" ] || die "the removed RPM leaves $(installed)"
  in_rpm_root --install --nodeps $package
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie)
for suite in "${suites[@]}"; do
  [ -n "${servers[$suite]:-}" ] || die "no PostgreSQL is known for $suite: add it to packaging/test.sh"
  test_suite "$suite" "${servers[$suite]}"
done
say "all packages passed"
