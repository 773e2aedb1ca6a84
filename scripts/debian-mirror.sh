#!/usr/bin/env bash
# Prints the address of the Debian mirror that apt uses on this system.
set -euo pipefail

mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' | sed -n 's/^Debian //p' | head -n 1)
[ -n "$mirror" ] || { echo "debian-mirror: apt has no lists of a Debian mirror: run apt-get update" >&2; exit 1; }
echo "$mirror"
