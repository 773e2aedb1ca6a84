#!/usr/bin/env bash
# documents.sh CHECKOUT DIRECTORY: copies into DIRECTORY the documents of a checkout that packages hold. Places below
# DIRECTORY are those of the repository, so the links between documents work.
set -euo pipefail

checkout=$1
to=$2

mkdir -p "$to"
# Not what the programs of examples leave behind when they run.
tar -C "$checkout" -c --exclude={target,node_modules,__pycache__} \
  README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE docs examples contrib | tar -C "$to" -x --no-same-owner
chmod -R u=rwX,go=rX "$to"
