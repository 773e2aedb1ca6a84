#!/usr/bin/env bash
# meta.sh FIELD: prints the first text of that name in META.json, such as maintainer, or nothing if there is none.
set -euo pipefail

sed -n "/\"$1\": /{s/.*\"$1\": \"\([^\"]*\)\".*/\1/p;q}" "$(dirname "$0")/../META.json"
