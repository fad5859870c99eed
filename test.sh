#!/usr/bin/env bash
# Every test of the project: format, lints, Rust tests, documentation, the Python package.
# Sets up what it needs (crates and Python packages by name); needs the Rust toolchain, git and python3.
#
# The crates are compiled twice, not more: once to check (lints, documentation), once to run (tests, wheel). For that,
# every command here asks for the same features and the same profile. Once everything is compiled, the Python tests
# run beside the Rust tests, because both often wait; what they print follows at the end.
set -euo pipefail
cd "$(dirname "$0")"
export CARGO_INCREMENTAL=0
all=(--workspace --features gradient,nats,parquet)

cargo fmt --all --check
cargo clippy "${all[@]}" --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc "${all[@]}" --no-deps --quiet
cargo test "${all[@]}" --no-run --quiet

python_says=$(mktemp)
crates/python/test.sh > "$python_says" 2>&1 &
python=$!
trap 'kill $python 2> /dev/null || true; rm -f "$python_says"' EXIT
if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run "${all[@]}"
    cargo test "${all[@]}" --doc
else
    cargo test "${all[@]}"
fi
wait $python || { cat "$python_says"; exit 1; }
cat "$python_says"
