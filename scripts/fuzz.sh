#!/usr/bin/env bash
# fuzz.sh SECONDS: fuzzes each parser of the core for that time. An input that breaks a promise ends the run with an
# error; libFuzzer writes it to crates/idgen-core/fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
cargo_fuzz=0.13.2
fuzz=crates/idgen-core/fuzz
work=target/fuzz # the build, and the corpus, which later runs extend

say() { echo "==> $*"; }
die() { echo "fuzz: $*" >&2; exit 1; }

rustup run nightly rustc --version >/dev/null 2>&1 ||
  die "libFuzzer needs nightly Rust: run: rustup toolchain install nightly --profile minimal"
if [ "$(cargo fuzz --version 2>/dev/null)" != "cargo-fuzz $cargo_fuzz" ]; then
  say "install cargo-fuzz $cargo_fuzz (takes minutes, once)"
  env -u CARGO_TARGET_DIR cargo install --locked cargo-fuzz --version "$cargo_fuzz"
fi

for target in layout text; do
  say "fuzz: $target, $seconds s"
  found=$work/corpus/$target
  mkdir -p "$found"
  # Sanitizers find nothing here: the core has no unsafe code, and overflow checks need none.
  cargo +nightly fuzz run --sanitizer none --fuzz-dir "$fuzz" --target-dir "$work" "$target" "$found" "$fuzz/seeds/$target" -- \
    -max_total_time="$seconds" -timeout=10 -max_len=256 -print_final_stats=1
done
