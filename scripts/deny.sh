#!/usr/bin/env bash
# deny.sh CHECK...: runs these checks of cargo-deny (licenses, bans, sources, advisories) over each Cargo.lock of the
# repository, by the rules of deny.toml.
set -euo pipefail
cd "$(dirname "$0")/.."

# The rules are written for the first workspace: there, a licence or an exception that no crate needs is an error.
unused=deny
for workspace in . crates/idgen-core/fuzz examples/sqlx; do
  cargo deny --manifest-path "$workspace/Cargo.toml" --locked --all-features --config deny.toml check \
    "--$unused" license-not-encountered --deny license-exception-not-encountered "$@"
  unused=allow
done
