#!/usr/bin/env bash
# version.sh [CHECKOUT]: prints the version of idgen in a checkout, by default in this one.
set -euo pipefail

sed -n 's/^version = "\(.*\)"/\1/p' "${1:-$(dirname "$0")/..}/Cargo.toml"
