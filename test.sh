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

# Python packages arrive while the compiler works.
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
crates/python/test.sh --venv "$venv" &
packages=$!

cargo fmt --all --check
cargo clippy "${all[@]}" --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc "${all[@]}" --no-deps --quiet
if cargo nextest --version > /dev/null 2>&1; then
    # One more than there are cores: some tests wait rather than compute.
    cargo nextest run "${all[@]}" --test-threads $(($(getconf _NPROCESSORS_ONLN) + 1))
    cargo test "${all[@]}" --doc
else
    cargo test "${all[@]}"
fi
wait "$packages"
ULTTA_VENV="$venv" crates/python/test.sh
