#!/usr/bin/env bash
# Every test of the project: format, lints, Rust tests, documentation, the Python package.
# Sets up what it needs (crates and Python packages by name); needs the Rust toolchain, git and python3.
#
# The crates are compiled twice, not more: once to check (lints, documentation), once to run (tests, wheel). For that,
# every command here asks for the same features and the same profile.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_INCREMENTAL=0
all=(--workspace --features gradient,nats,parquet)

cargo fmt --all --check
cargo clippy "${all[@]}" --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc "${all[@]}" --no-deps --quiet
if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run "${all[@]}"
    cargo test "${all[@]}" --doc
else
    cargo test "${all[@]}"
fi
crates/python/test.sh
