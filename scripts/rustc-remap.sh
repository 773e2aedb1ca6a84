#!/usr/bin/env bash
# rustc-remap.sh RUSTC ARGUMENT...: the compiler of `make build`. It writes neither this directory nor that of Cargo into
# the library, so builds of one commit in two directories are equal. Cargo's own flags cannot do this: they name the
# directory, and the names of generated files are hashes of the flags.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
remap=(--remap-path-prefix="$root=/idgen" --remap-path-prefix="${CARGO_TARGET_DIR:-$root/target}=/idgen/target")
for registry in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
  remap+=(--remap-path-prefix="$registry=/cargo")
done
exec "$@" "${remap[@]}"
