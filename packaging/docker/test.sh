#!/usr/bin/env bash
# test.sh: builds both images of the Dockerfile with buildah, which needs no daemon, and runs the quickstart in the image
# of a server. The images that the Dockerfile starts from are replaced by stand-ins of the same names: no registry is
# needed. Skips on systems where buildah cannot run a command in a container.
set -euo pipefail
cd "$(dirname "$0")/../.."

pg=15
suite=bookworm # PostgreSQL 15 is its own
rust=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)

say() { echo "==> $*"; }
die() { echo "test-dockerfile: $*" >&2; exit 1; }
skip() { echo "test-dockerfile: SKIPPED: $*" >&2; exit 0; }

if [ $# = 0 ]; then
  [ "$(id -u)" = 0 ] || skip "it needs root"
  command -v apt-get >/dev/null || skip "it needs Debian, for debootstrap and buildah"
  scripts/setup.sh dockerfile-deps
  work=$(mktemp -d /var/tmp/idgen-dockerfile.XXXXXX)
  trap 'rm -rf --one-file-system "$work"' EXIT
  # In namespaces of its own, what buildah mounts ends with the test.
  unshare --mount --pid --mount-proc --fork --kill-child packaging/docker/test.sh "$work"
  exit
fi
work=$1

buildah() { command buildah --root "$work/storage" --runroot "$work/run" --storage-driver overlay "$@"; }
# container IMAGE NAME: makes a container, and prints the directory of its files.
container() { buildah mount "$(buildah from --pull=never --name "$2" "$1")"; }
build() {
  buildah build --quiet --isolation chroot --pull=never --layers --build-arg PG=$pg \
    --build-arg DEBIAN=$suite --file packaging/docker/Dockerfile --ignorefile packaging/docker/Dockerfile.dockerignore \
    "$@" .
}

# The official image of PostgreSQL keeps the sample of the configuration in another place than Debian's package.
postgres_image() {
  local base root share=/usr/share/postgresql
  base=$(packaging/clean-root.sh $suite postgresql-$pg)
  root=$(container scratch postgres)
  cp -a "$base/." "$root"
  mv "$root$share/$pg/postgresql.conf.sample" "$root$share/"
  ln -s ../postgresql.conf.sample "$root$share/$pg/"
  chroot "$root" install -d -o postgres -g postgres -m 3777 /var/run/postgresql
  buildah run --isolation chroot postgres -- true || skip "buildah cannot run a command in a container"
  buildah commit --quiet --rm postgres docker.io/library/postgres:$pg-$suite
}

# The Dockerfile copies Cargo and rustup of the official image of Rust, and nothing else. That image has the links of
# rustup for rustfmt and clippy, but not these components.
rust_image() {
  local root toolchain=$rust-$(uname -m)-unknown-linux-gnu
  local cargo=${CARGO_HOME:-$HOME/.cargo} rustup=${RUSTUP_HOME:-$HOME/.rustup}
  root=$(container scratch rust)
  mkdir -p "$root"/usr/local/cargo/bin "$root"/usr/local/rustup/toolchains
  cp -a "$cargo"/bin/{rustup,cargo,rustc,rustdoc,rustfmt,cargo-fmt} "$root/usr/local/cargo/bin/"
  cp -a "$rustup/settings.toml" "$root/usr/local/rustup/"
  cp -aH "$rustup/toolchains/$toolchain" "$root/usr/local/rustup/toolchains/"
  rm -f "$root/usr/local/rustup/toolchains/$toolchain"/bin/{rustfmt,cargo-fmt,cargo-clippy,clippy-driver}
  buildah commit --quiet --rm rust docker.io/library/rust:"$rust-$suite"
}

say "stand-ins for the official images of PostgreSQL $pg and Rust $rust on $suite"
postgres_image
rust_image

say "build the image of a server"
build --tag idgen
say "build the image of files"
build --target files --tag idgen-files

server=$(container idgen server)
files=$(container idgen-files files)
same() { diff "$files/$1" "$server/$2" || die "the images differ in $1"; }
same lib/idgen.so usr/lib/postgresql/$pg/lib/idgen.so
same licenses/copyright usr/share/doc/postgresql-$pg-idgen/copyright
for file in "$files"/share/extension/*; do
  same "share/extension/${file##*/}" "usr/share/postgresql/$pg/extension/${file##*/}"
done

say "run the quickstart in the image of a server"
mkdir "$work/blocks"
awk -v to="$work/blocks" -f packaging/blocks.awk docs/quickstart.md
packaging/enter-root.sh keep "$server" "$PWD/packaging:/packages" "$work/blocks:/blocks" -- \
  /packages/docker/test-in-image.sh $pg
say "both images were built, and the server's passed"
